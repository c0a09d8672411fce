"""What `fedcome doctor` takes from Flower's private modules, as found in flwr 1.42.

If a test fails after an upgrade of Flower, correct `fedcome_flwr/cli/doctor/control_api.py`. What breaks otherwise:
the doctor cannot say whether a key is registered, nor how many SuperNodes are online.
"""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from flwr.proto.control_pb2 import ListNodesRequest, ListNodesResponse
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.constant import VERSION_INCOMPATIBILITY_MESSAGE_METADATA_KEY
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata

from fedcome_flwr.cli.doctor import Link, control_api


@pytest.fixture
def superlink():
    """A server that answers as a SuperLink of flwr 1.42 would; what it was asked is kept."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        reply, status, objection = ListNodesResponse(), 200, ""

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            asked.append((self.path, body, {name.lower(): value for name, value in self.headers.items()}))
            content = b"no account" if Handler.status != 200 else Handler.reply.SerializeToString()
            self.send_response(Handler.status)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(content)))
            if Handler.objection:
                self.send_header(VERSION_INCOMPATIBILITY_MESSAGE_METADATA_KEY, Handler.objection)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Handler, Link("127.0.0.1", server.server_address[1], True, None), asked
    server.shutdown()
    server.server_close()


def test_nodes_are_listed_with_names_states_and_keys(superlink):
    handler, link, asked = superlink
    handler.reply = ListNodesResponse(nodes_info=[NodeInfo(name="site", status="online", public_key=b"key")])
    assert control_api.list_nodes(link) == ([control_api.Node("site", "online", b"key")], "")
    ((path, body, headers),) = asked
    assert path.endswith("ListNodes") or path.endswith("list-nodes"), path
    assert body == ListNodesRequest().SerializeToString()
    versions = dict(RuntimeVersionMetadata.from_local_component("fedcome doctor").as_metadata())
    assert versions
    assert versions.items() <= headers.items()


def test_an_objection_to_the_version_is_kept(superlink):
    handler, link, _ = superlink
    handler.objection = "flwr 1.41 is too old"
    assert control_api.list_nodes(link) == ([], "flwr 1.41 is too old")


def test_a_refusal_is_an_error_with_its_text(superlink):
    handler, link, _ = superlink
    handler.status = 401
    with pytest.raises(control_api.ControlApiError, match=r"^401: "):
        control_api.list_nodes(link)


def test_a_server_that_is_away_is_an_error():
    with pytest.raises(control_api.ControlApiError):
        control_api.list_nodes(Link("127.0.0.1", 1, True, None))
