"""Which SuperLink is meant, and how it is reached."""

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...simulation.run_config import AppError


@dataclass(frozen=True)
class Link:
    """A SuperLink's address.

    Attributes
    ----------
    host, port
        Where it listens.
    insecure
        Without TLS.
    root_certificates
        The file with the certificate authority that its certificate must come from; ``None``: the machine's own.
    """

    host: str
    port: int
    insecure: bool
    root_certificates: Path | None

    @property
    def address(self) -> str:
        """As Flower's commands take it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_link(text: str, root_certificates: Path | None = None, insecure: bool = False) -> Link:
    """The SuperLink that ``--superlink`` names: ``HOST:PORT``, or a connection of Flower's ``config.toml``.

    Raises
    ------
    AppError
        There is no such connection, or it is no address.
    """
    if insecure and root_certificates:
        raise AppError("expected --insecure or --root-certificates, found both; TLS needs only --root-certificates")
    if ":" in text:
        return Link(*_split(text), insecure, root_certificates)
    connection = _connection(text)
    address, trust = str(connection.get("address", "")), connection.get("root-certificates")
    if address.startswith(":") or ":" not in address:
        raise AppError(
            f"connection {text!r}: expected the address HOST:PORT of a SuperLink, found {address!r}"
            + ("; it runs in simulation, where nothing has to be reached" if address.startswith(":") else "")
        )
    return Link(
        *_split(address),
        insecure or bool(connection.get("insecure", False)),
        root_certificates or (Path(str(trust)).expanduser() if trust else None),
    )


def _connection(name: str) -> dict[str, Any]:
    file = Path(os.environ.get("FLWR_HOME", "~/.flwr")).expanduser() / "config.toml"
    try:
        connections = tomllib.loads(file.read_text(encoding="utf-8")).get("superlink", {})
    except FileNotFoundError:
        connections = {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise AppError(f"{file} is no valid TOML: {error}") from error
    found = connections.get(name) if isinstance(connections, dict) else None
    if not isinstance(found, dict):
        known = sorted(key for key, value in dict(connections).items() if isinstance(value, dict))
        raise AppError(
            f"expected HOST:PORT or a connection of {file} ({', '.join(known) or 'it has none'}), found {name!r}"
        )
    return found


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not (host and "/" not in address and port.isdecimal() and 0 < int(port) < 65536):
        raise AppError(f"expected a SuperLink's address as HOST:PORT, without https://, found {address!r}")
    return host.strip("[]"), int(port)
