"""The repair of kernels without IR: who asks a slim kernel for its text gets it.

A slim restore leaves out what a launch never reads: Triton's source, ttir, ttgir, llir, ptx, amdgcn. Those who do
read it ask the kernel, `kernel.asm["ttir"]`. Here such a kernel is compiled again when it is asked for the first
time, which also completes its directory. Overrides and dumps (TRITON_KERNEL_OVERRIDE, TRITON_KERNEL_DUMP) act
while a kernel is compiled and never read a cached one, so they do nothing here either.

AOTInductor packs the assembly of each kernel that it compiles: for those it is there before anybody asks. A kernel
that a compile worker has loaded is pickled without means to compile it; in the process that launches it, its
autotuner has them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from cachehome.observe import patches
from cachehome.observe.activity import log

# By the binary that a kernel has: what it had before, in the order of compilation.
TEXTS = {
    "cubin": ("source", "ttir", "ttgir", "llir", "ptx"),
    "hsaco": ("source", "ttir", "ttgir", "llir", "amdgcn"),
}

_classes: dict[type, Any] = {}  # Triton's class of what a kernel holds -> ours below it


def install(module: Any) -> None:
    """Repair `triton.compiler.compiler`."""
    try:
        plain = patches.member(module, "AsmDict")
        compile_kernel = patches.member(module, "compile")
        _classes[plain] = _lazy(plain)

        def made(_none: Any, args: tuple[Any, ...], _kwargs: Any) -> None:
            kernel = args[0]
            # Not the kernel itself: a cycle would keep its module on the GPU.
            _make_lazy(kernel.asm, partial(complete, compile_kernel, kernel.src, kernel.metadata))

        patches.after(patches.member(module, "CompiledKernel"), "__init__", made)
    except patches.Unfamiliar as error:
        log.watched("ir", str(error))
    else:
        log.watched("ir")


def install_autotuners(module: Any) -> None:
    """Repair `torch._inductor.runtime.triton_heuristics`: kernels that AOTInductor will pack, and unpickled ones."""
    try:
        autotuner = patches.member(module, "CachingAutotuner")
        patches.after(autotuner, "_precompile_config", _packed)
        patches.before(autotuner, "_make_launchers", _loaded)
    except patches.Unfamiliar as error:
        log.watched("ir", str(error))


def _packed(result: Any, args: tuple[Any, ...], _kwargs: Any) -> None:
    asm: Any = getattr(getattr(result, "kernel", None), "asm", None)
    if (args[0].inductor_meta or {}).get("store_cubin") and hasattr(asm, "complete"):
        asm.fill()


def _loaded(args: tuple[Any, ...], _kwargs: Any) -> None:
    autotuner = args[0]
    for result in autotuner.compile_results:
        asm = getattr(result.kernel, "asm", None)
        if asm is not None:
            _make_lazy(asm, partial(_again, autotuner, result.config))


def _again(autotuner: Any, config: Any) -> dict[str, Any]:
    """The texts of a kernel that was compiled elsewhere, by having its *autotuner* load it here."""
    if autotuner.fn.fn is None:
        autotuner.fn = autotuner._reload_kernel().fn  # noqa: SLF001 - as torch does before it compiles one more
    with log.silence():
        asm = autotuner._precompile_config(config).kernel.asm  # noqa: SLF001
    return dict(asm.items())


def _make_lazy(asm: Any, complete: Callable[[], dict[str, Any]]) -> None:
    """Let *asm* fetch its texts by *complete* when somebody asks, if it is a slim kernel's."""
    if type(asm) in _classes and texts_of(asm):
        asm.__class__ = _classes[type(asm)]
        asm.complete = complete


def texts_of(asm: Any) -> tuple[str, ...]:
    """The texts that a slim kernel lacks; () if it is not slim."""
    for binary, texts in TEXTS.items():
        if dict.__contains__(asm, binary):
            return () if any(dict.__contains__(asm, text) for text in texts) else texts
    return ()


def complete(compile_kernel: Any, source: Any, facts: Any) -> dict[str, Any]:
    """The texts of a slim kernel, by compiling its *source* again as its metadata, *facts*, say."""
    from triton import knobs

    metadata = facts._asdict()
    # From JSON: what were tuples are lists, and the key of the kernel's directory would be another.
    options = {
        name: _tuples(value) for name, value in metadata.items() if name not in ("hash", "target", "name")
    }
    with log.silence(), knobs.compilation.scope():
        knobs.compilation.always_compile = True
        # The kernel as it was, and all of it: what acts on kernels while they are compiled has had its chance.
        for name in ("override", "dump_ir", "store_binary_only"):
            setattr(knobs.compilation, name, False)
        again = compile_kernel(source, target=metadata["target"], options=options)
    log.add(kernels_completed=1)
    return dict(again.asm)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _lazy(plain: Any) -> Any:
    """A subclass of Triton's `AsmDict` that fetches what it lacks when somebody looks."""

    class SlimAsmDict(plain):  # type: ignore[misc]
        def fill(self) -> None:
            if texts_of(self):
                found = self.complete()
                for name, text in found.items():
                    dict.setdefault(self, name, text)

        def __missing__(self, key: str) -> Any:
            if key not in texts_of(self):
                return super().__missing__(key)
            try:
                self.fill()
                return dict.__getitem__(self, key)
            except Exception as error:
                raise KeyError(
                    f"{key!r} was left out of a slim restore, and compiling it again failed ({error!r});"
                    " CACHEHOME_SLIM=off restores it"
                ) from error

        def get(self, key: str, default: Any = None) -> Any:
            try:
                return self[key]
            except KeyError:
                return default

        def __contains__(self, key: object) -> bool:
            return dict.__contains__(self, key) or key in texts_of(self)

        def __iter__(self) -> Any:
            self.fill()
            return dict.__iter__(self)

        def __len__(self) -> int:
            self.fill()
            return dict.__len__(self)

        def keys(self) -> Any:
            self.fill()
            return dict.keys(self)

        def values(self) -> Any:
            self.fill()
            return dict.values(self)

        def items(self) -> Any:
            self.fill()
            return dict.items(self)

        def __reduce_ex__(self, _protocol: object) -> Any:
            # Other processes need not know us.
            return plain, (dict(dict.items(self)),)

    return SlimAsmDict
