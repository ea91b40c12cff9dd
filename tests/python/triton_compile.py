"""Triton's compiler for a GPU that need not be here."""

from __future__ import annotations

from typing import Any


def compiled(
    function: Any,
    target: tuple[str, Any, int],
    types: dict[str, str],
    constants: dict[str, Any],
    divisible: list[str],
    options: dict[str, Any],
) -> Any:
    """What Triton makes of a kernel. target: as GPUTarget has it, ("cuda", 90, 32).

    types: of all arguments, "constexpr" among them; divisible: names of those that are known to be multiples of 16.
    """
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    import triton

    source = ASTSource(
        fn=function,
        signature=types,
        constexprs=constants,
        attrs={(function.arg_names.index(name),): [["tt.divisibility", 16]] for name in divisible},
    )
    return triton.compile(source, target=GPUTarget(*target), options=options)
