"""From a trace to an artifact: legality checks, lowering, code generation, compiling, and the cache of
what was compiled."""
