"""The ranking rule: which record is the best of a (workload, target). The store and `lookup` share its SQL
text.

Records are grouped by trace, because a schedule may be timed more than once:

1. **A trace is represented by one record**: its newest ``final`` record if it has any, whatever its status,
  else its
   fastest ``ok`` trial. Finalists are timed interleaved, so their times compare better than those of trials,
   where the luckiest of thousands leads. A final may be ``slow``: it led at the largest sizes alone
   (`autotune.tuning.ranking`).
2. **It counts if that record is ok**, no newer record of the trace found it wrong (``wrong_result`` or
   ``out_of_bounds``), and verifying did not find it wrong or failing.
3. **The smallest time_s wins**. Equal times go to the older record, then to the smaller uid.

"Newer" is by (created, uid). Merging keeps both, so every copy of a log gives one answer, except for what
verifying found there. A clock that is set back does not matter: `Log.add` puts a record after those of its
trace.
"""

from __future__ import annotations

# SQL: whether two records have the same task and trace.
_SAME = "o.workload = record.workload AND o.target = record.target AND o.trace_digest = record.trace_digest"

# SQL: whether a record was found wrong or failing. It holds for pinned records too.
DOUBTED = f"""(
    EXISTS (
        SELECT 1 FROM record AS o WHERE {_SAME} AND o.status IN ('wrong_result', 'out_of_bounds')
        AND (o.created, o.uid) > (record.created, record.uid))
    OR EXISTS (
        SELECT 1 FROM verification AS v WHERE v.record = record.uid AND v.status IN ('wrong', 'failed'))
)"""

# SQL: whether a row of `record` represents its trace. A query walks the index ix_record_best in order of time
# and stops at the first hit, so that a lookup does not read the whole log.
REPRESENTS = f"""(
    record.status = 'ok'
    AND (
        (record.kind = 'final' AND NOT EXISTS (
            SELECT 1 FROM record AS o WHERE {_SAME} AND o.kind = 'final'
            AND (o.created, o.uid) > (record.created, record.uid)))
        OR (record.kind = 'trial' AND NOT EXISTS (
            SELECT 1 FROM record AS o WHERE {_SAME} AND (o.kind = 'final' OR (o.status = 'ok'
            AND (o.time_s, o.created, o.uid) < (record.time_s, record.created, record.uid)))))
    )
    AND NOT {DOUBTED}
)"""

# SQL: the order of the ranking.
ORDER = "record.time_s, record.created, record.uid"
