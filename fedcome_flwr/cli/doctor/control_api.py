"""Everything that `fedcome doctor` takes from Flower's private modules: who the SuperLink's nodes are.

`flwr supernode list` shows neither names nor public keys. What is used here may move in any Flower release;
``test_control_api_contract.py`` says what was relied on and with which release.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from flwr.proto.control_pb2 import ListNodesRequest
from flwr.supercore.constant import VERSION_INCOMPATIBILITY_MESSAGE_METADATA_KEY
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata

from .link import Link


@dataclass(frozen=True)
class Node:
    """A SuperNode as the SuperLink knows it; ``status`` is registered, online, offline or unregistered."""

    name: str
    status: str
    public_key: bytes


class ControlApiError(Exception):
    """The SuperLink did not list its nodes; the text is its own."""


class _Versions:
    """Tells the SuperLink which Flower this is, and keeps what it says to that."""

    def __init__(self) -> None:
        self.objection = ""
        self._metadata = RuntimeVersionMetadata.from_local_component("fedcome doctor")

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Put the versions into the request's headers, and read the reply's."""
        context.request.headers.update(dict(self._metadata.as_metadata()))
        context.request.headers["x-flwr-client"] = "cli"
        response = call_next(context)
        self.objection = response.headers.get(VERSION_INCOMPATIBILITY_MESSAGE_METADATA_KEY, "")
        return response


def list_nodes(link: Link) -> tuple[Sequence[Node], str]:
    """The SuperLink's nodes, and what it objects to this Flower's version, which is empty where it does not.

    Raises
    ------
    ControlApiError
        It refused, or was not reached.
    """
    versions = _Versions()
    trust = link.root_certificates.read_bytes() if link.root_certificates else None
    client = ControlHttpClient.from_server_address(link.address, link.insecure, trust, [versions])
    try:
        nodes = client.ListNodes(ListNodesRequest()).nodes_info
    except httpx.HTTPStatusError as error:
        text = error.response.text or error.response.reason_phrase
        raise ControlApiError(f"{error.response.status_code}: {text}"[:500]) from error
    except httpx.HTTPError as error:
        raise ControlApiError(str(error)) from error
    finally:
        client.close()
    return [Node(node.name, node.status, node.public_key) for node in nodes], versions.objection


def public_key_of(private_key: Path) -> bytes:
    """The public half of a SuperNode's private key, as the SuperLink keeps it.

    Raises
    ------
    ValueError
        It is no private key on a NIST curve without passphrase.
    """
    text = private_key.read_bytes()
    load = serialization.load_ssh_private_key if b"OPENSSH" in text else serialization.load_pem_private_key
    try:
        key = load(text, password=None).public_key()
    except (ValueError, TypeError) as error:
        raise ValueError(f"{private_key} is no private key without passphrase ({error})") from error
    if not isinstance(key, EllipticCurvePublicKey):
        raise ValueError(f"{private_key}: expected an elliptic-curve key, found {type(key).__name__}")
    return public_key_to_bytes(key)
