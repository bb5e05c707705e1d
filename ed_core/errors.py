"""Everything that can go wrong, as one tree; and what an error of Python's, of torch's or of a device means, whatever
its type. Torch-free. Every message is one sentence or two: what was found, what was expected, what to do next."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class EffectiveDepthError(Exception):
    """Root of the tree; `str(error)` is fit to be shown to a user as it is."""


class InputError(EffectiveDepthError):
    """A request that is at fault, not the model or the computation."""


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
    """A setting of this installation that does not exist or has a wrong value; names it and its place."""


class NotAllowed(InputError):
    """Something that the settings of this installation do not allow; names the setting."""


class CaseError(InputError):
    """A case study that does not exist, or with a title, notes or tags that cannot be kept like this."""


class CaseChanged(CaseError):
    """A case study that was changed by somebody else since it was opened."""


class ImportRefused(InputError):
    """A bundle that is damaged, hostile, or not one at all; nothing of it was kept."""


class OtherVersion(ImportRefused):
    """A bundle written by another version of this program: whole, but not to be read here."""


class ModelError(EffectiveDepthError):
    """A model that cannot be used."""


class ModelNotFound(ModelError):
    """A missing folder, or a folder without a model."""


class HubUnreachable(ModelError):
    """A hub id that is not in the local cache while no network answers."""


class HubRefused(ModelError):
    """The hub, or the package registry, answered and gave no model: gated, private, or no such id or revision."""


class TooLarge(ModelError):
    """A model too large for the free memory, or its download for the free disk; names both figures and what fits."""


class BrokenWeights(ModelError):
    """Weights that are missing, truncated, pickled, of other shapes, or of other content than expected."""


class UnknownFamily(ModelError):
    """A `model_type` that no architecture here describes, and that has no residual sums under any known layout."""


class RefusedFamily(ModelError):
    """A family of models, or a variant of one, whose residual stream is known to be no plain sum of additions."""


class IdentityFailed(ModelError):
    """A model in which layers' additions do not sum to the stream, so that every curve would be wrong."""


class NotFinite(ModelError):
    """A forward pass that gave NaN or infinite values."""


class CardError(EffectiveDepthError):
    """A depth card that is missing, damaged, or cannot be written."""


class PublishError(EffectiveDepthError):
    """A site that cannot be written."""


class JobError(EffectiveDepthError):
    """A computation that did not finish."""


class Cancelled(JobError):
    """A computation that was cancelled, or that no page shows any more."""


class OutOfMemory(JobError):
    """Memory ran out while a probe was running, however little was asked for at once."""


class DeviceFailed(JobError):
    """A device failed underneath a computation; this process can use it no more."""


class WorkerDied(JobError):
    """A worker process that ended during its job."""


class ServiceFailed(JobError):
    """A service where models are measured did not answer, refused, or answered with what was not asked for."""


class ImageFailed(JobError):
    """A figure could not be drawn as PNG or SVG: no browser is there, or it did not answer in time."""


class StoreError(EffectiveDepthError):
    """A store of results that cannot be written or read at all."""


BY_NAME: dict[str, type[EffectiveDepthError]] = {
    name: kind for name, kind in globals().items() if isinstance(kind, type) and issubclass(kind, EffectiveDepthError)
}


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
    """Return whether an error says that memory ran out: Python's, or torch's on any device (on a CPU torch raises a
    plain RuntimeError, and what cuBLAS or cuDNN could not allocate is one as well)."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and bool(NO_MEMORY.search(str(error)))


def lost_device(error: BaseException | None) -> bool:
    """Return whether a device has failed so that everything asked of it by this process from now on fails too: an
    assert in a kernel, an illegal access, a library's status. Only a new process cures it."""
    return isinstance(error, RuntimeError) and not ran_out(error) and bool(LOST.search(str(error)))


@contextmanager
def refused(refusal: Callable[[Exception], EffectiveDepthError]) -> Iterator[None]:
    """Turn any error of the block, whatever a stranger's model provokes inside a library, into `refusal(error)`; memory
    that runs out and a lost device pass, as this program's own errors do."""
    try:
        yield
    except EffectiveDepthError:
        raise
    except Exception as error:
        if ran_out(error) or lost_device(error):
            raise
        raise refusal(error) from error


def one_line(error: BaseException) -> str:
    """Return an error's message, or its class's name, on one line of at most 200 characters, to put in a sentence."""
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
