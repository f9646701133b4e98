"""Rota: one fair queue over all the GPUs of a research team."""

__version__ = "0.1.0"


def __getattr__(name: str) -> object:  # typed in __init__.pyi; this file is read by every start of `rota`
    if name in ("Client", "AsyncClient"):
        from rota import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
