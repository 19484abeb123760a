"""Every exception kvsuite raises on purpose.

    KvsuiteError
    ├── TraceError              a trace file or a trace cannot be read, or contradicts itself
    │   └── AmbiguousTrace      readable in two ways; the message names the option that settles it
    ├── ConfigError             a layout, pool, scheduler or option that cannot be
    │   └── UnsupportedBlockSize  an engine has no blocks of the size asked for
    ├── DeviceError             the asked-for device is absent or does not do what was asked
    │   └── KernelUnavailable   an attention kernel cannot be had here; it says what was looked for
    ├── EnvironmentUnavailable  an engine's environment is not there and cannot be built now
    ├── EngineError             an engine broke the contract, or is not known
    │   ├── UnknownEngine       no engine of that name; the message lists the known ones
    │   └── BlockError          a block operation the paged cache refuses (double free, unknown sequence)
    ├── InvariantViolation      the ledger or the content read back is wrong
    ├── RecordError             a run record is damaged or of an unknown major version
    └── GoldenError             a golden cannot be read or written
        └── GoldenMismatch      a ledger differs from its golden

A message says what was found, where, what was expected, and what to do.
"""


class KvsuiteError(Exception):
    """Root of the tree; ``exit_code`` is what the command line returns for it."""

    exit_code = 2


class TraceError(KvsuiteError):
    """A trace file or a trace cannot be read, or contradicts itself."""


class AmbiguousTrace(TraceError):
    """A trace file can be read in more than one way; the message names the option that settles it."""


class ConfigError(KvsuiteError):
    """A layout, pool, scheduler or option that cannot be."""


class UnsupportedBlockSize(ConfigError):
    """An engine has no blocks of the size asked for; the message says which it has."""


class DeviceError(KvsuiteError):
    """The asked-for device is absent or does not do what was asked."""

    exit_code = 3


class KernelUnavailable(DeviceError):
    """An attention kernel cannot be had here: no compiler, no package, no card; ``looked_for`` lists what."""

    def __init__(self, message: str, looked_for: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.looked_for = looked_for


class EnvironmentUnavailable(KvsuiteError):
    """An engine's environment is not there and cannot be built: no index, no such version, a failed build."""

    exit_code = 3


class EngineError(KvsuiteError):
    """An engine broke the contract, or is not known."""


class UnknownEngine(EngineError):
    """No engine of that name is registered."""


class BlockError(EngineError):
    """A block operation that the paged cache refuses."""


class InvariantViolation(KvsuiteError):
    """The ledger, or the content read back, is wrong."""

    exit_code = 1


class RecordError(KvsuiteError):
    """A run record is damaged or of an unknown major version."""


class GoldenError(KvsuiteError):
    """A golden cannot be read or written."""


class GoldenMismatch(GoldenError):
    """A ledger differs from its golden."""

    exit_code = 1
