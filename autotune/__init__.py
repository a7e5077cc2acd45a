"""autotune: an auto-tuning tensor operator compiler.

State an operator, `tune` it on the machine at hand, `load` the kernel that was found::

    import autotune as at

    at.tune("matmul", m=1024, n=1024, k=1024, budget_s=60)
    kernel = at.load("matmul", m=1024, n=1024, k=1024)
    c = kernel(a, b)

Importing this package touches no file, environment, database or device: every name below is
imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from schedules.distribution import VERSION as __version__

if TYPE_CHECKING:
    from autotune import torch as torch
    from autotune.api import build as build
    from autotune.api import ops as ops
    from autotune.api import tune as tune
    from autotune.api import tune_suite as tune_suite
    from autotune.backends.building.cross_compile import Compiled as Compiled
    from autotune.backends.building.cross_compile import compile_for as compile_for
    from autotune.errors import ArgumentError as ArgumentError
    from autotune.errors import CompileError as CompileError
    from autotune.errors import KernelNotFound as KernelNotFound
    from autotune.errors import MissingExtraError as MissingExtraError
    from autotune.errors import ModelError as ModelError
    from autotune.errors import ReportError as ReportError
    from autotune.fleet.errors import FleetError as FleetError
    from autotune.models.compiling import compile_model as compile_model
    from autotune.models.export import ExportedModel as ExportedModel
    from autotune.models.generation import generate as generate
    from autotune.models.generation import stream_tokens as stream_tokens
    from autotune.models.gguf_import import import_gguf as import_gguf
    from autotune.models.model import Model as Model
    from autotune.models.module import Module as Module
    from autotune.models.onnx_import import import_onnx as import_onnx
    from autotune.models.quantize import quantize as quantize
    from autotune.models.quantized import QuantizedModel as QuantizedModel
    from autotune.models.saved import load_model as load_model
    from autotune.models.torch_import import import_torch as import_torch
    from autotune.models.tuned_model import ModelTuneResult as ModelTuneResult
    from autotune.models.tuning import tune_model as tune_model
    from autotune.report.explain.asking import explain as explain
    from autotune.results.explanation import Explanation as Explanation
    from autotune.results.tuned import DynamicResult as DynamicResult
    from autotune.results.tuned import FleetResult as FleetResult
    from autotune.results.tuned import SuiteResult as SuiteResult
    from autotune.results.tuned import TuneResult as TuneResult
    from autotune.run.dynamic_kernel import DynamicKernel as DynamicKernel
    from autotune.run.export import Exported as Exported
    from autotune.run.export import export as export
    from autotune.run.kernel import Kernel as Kernel
    from autotune.run.loading import best as best
    from autotune.run.loading import load as load
    from autotune.run.open_kernel import OpenKernel as OpenKernel
    from autotune.run.repeat import Repeated as Repeated
    from autotune.run.repeat import repeat as repeat
    from autotune.settings import Settings as Settings
    from autotune.settings import SettingsError as SettingsError
    from autotune.targets import TargetError as TargetError
    from autotune.tuning.suites import SuiteError as SuiteError
    from kernels_db.errors import LogError as LogError
    from kernels_db.store import Log as Log
    from schedules import te as te
    from schedules.errors import AutotuneError as AutotuneError
    from schedules.errors import ScheduleError as ScheduleError
    from schedules.errors import WorkloadError as WorkloadError
    from schedules.model import Target as Target
    from schedules.model import Trace as Trace
    from schedules.model import TraceError as TraceError
    from schedules.model import Workload as Workload
    from schedules.schedule import Schedule as Schedule
    from schedules.te.dims import dim as dim

# Public name -> (module, attribute); an empty attribute is the module itself.
_EXPORTS = {
    "tune": ("autotune.api", "tune"),
    "tune_suite": ("autotune.api", "tune_suite"),
    "load": ("autotune.run.loading", "load"),
    "best": ("autotune.run.loading", "best"),
    "explain": ("autotune.report.explain.asking", "explain"),
    "Explanation": ("autotune.results.explanation", "Explanation"),
    "build": ("autotune.api", "build"),
    "repeat": ("autotune.run.repeat", "repeat"),
    "Repeated": ("autotune.run.repeat", "Repeated"),
    "export": ("autotune.run.export", "export"),
    "Exported": ("autotune.run.export", "Exported"),
    "ExportedModel": ("autotune.models.export", "ExportedModel"),
    "compile_for": ("autotune.backends.building.cross_compile", "compile_for"),
    "Compiled": ("autotune.backends.building.cross_compile", "Compiled"),
    "tune_model": ("autotune.models.tuning", "tune_model"),
    "compile_model": ("autotune.models.compiling", "compile_model"),
    "load_model": ("autotune.models.saved", "load_model"),
    "quantize": ("autotune.models.quantize", "quantize"),
    "QuantizedModel": ("autotune.models.quantized", "QuantizedModel"),
    "generate": ("autotune.models.generation", "generate"),
    "stream_tokens": ("autotune.models.generation", "stream_tokens"),
    "Module": ("autotune.models.module", "Module"),
    "ModelTuneResult": ("autotune.models.tuned_model", "ModelTuneResult"),
    "ops": ("autotune.api", "ops"),
    "te": ("schedules.te", ""),
    "dim": ("schedules.te.dims", "dim"),
    "torch": ("autotune.torch", ""),
    "import_gguf": ("autotune.models.gguf_import", "import_gguf"),
    "import_onnx": ("autotune.models.onnx_import", "import_onnx"),
    "import_torch": ("autotune.models.torch_import", "import_torch"),
    "Model": ("autotune.models.model", "Model"),
    "Schedule": ("schedules.schedule", "Schedule"),
    "Trace": ("schedules.model", "Trace"),
    "Target": ("schedules.model", "Target"),
    "Workload": ("schedules.model", "Workload"),
    "Log": ("kernels_db.store", "Log"),
    "Kernel": ("autotune.run.kernel", "Kernel"),
    "DynamicKernel": ("autotune.run.dynamic_kernel", "DynamicKernel"),
    "OpenKernel": ("autotune.run.open_kernel", "OpenKernel"),
    "DynamicResult": ("autotune.results.tuned", "DynamicResult"),
    "SuiteResult": ("autotune.results.tuned", "SuiteResult"),
    "TuneResult": ("autotune.results.tuned", "TuneResult"),
    "Settings": ("autotune.settings", "Settings"),
    "AutotuneError": ("schedules.errors", "AutotuneError"),
    "ArgumentError": ("autotune.errors", "ArgumentError"),
    "CompileError": ("autotune.errors", "CompileError"),
    "FleetError": ("autotune.fleet.errors", "FleetError"),
    "FleetResult": ("autotune.results.tuned", "FleetResult"),
    "MissingExtraError": ("autotune.errors", "MissingExtraError"),
    "ModelError": ("autotune.errors", "ModelError"),
    "ReportError": ("autotune.errors", "ReportError"),
    "LogError": ("kernels_db.errors", "LogError"),
    "SuiteError": ("autotune.tuning.suites", "SuiteError"),
    "TargetError": ("autotune.targets", "TargetError"),
    "KernelNotFound": ("autotune.errors", "KernelNotFound"),
    "ScheduleError": ("schedules.errors", "ScheduleError"),
    "SettingsError": ("autotune.settings", "SettingsError"),
    "TraceError": ("schedules.model", "TraceError"),
    "WorkloadError": ("schedules.errors", "WorkloadError"),
}

__all__ = ["__version__", *_EXPORTS]


# What lower rooms call of upper ones: {name: (module, function)}.
HOOKS = {
    "report": ("autotune.report", "of_shown"),
    "explain": ("autotune.report.explain.asking", "of_result"),
    "fleet": ("autotune.fleet.tuning", "FleetPlace"),
    "objects": ("autotune.backends.building.object_cache", "objects_of_user"),
    "first_pick": ("autotune.tuning.first_pick", "first_pick"),
    "pick_elsewhere": ("autotune.tuning.first_pick", "pick_elsewhere"),
}


def __getattr__(name: str) -> Any:
    try:
        module, attribute = _EXPORTS[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    found = import_module(module)
    value = getattr(found, attribute) if attribute else found
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
