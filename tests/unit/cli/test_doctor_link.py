"""The way to a SuperLink: what `fedcome doctor` finds on it, with servers and certificates of the tests' own."""

import datetime as dt
import ipaddress
import socket
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from fedcome_flwr.cli.doctor import Link, check_link, control_api, link_checks, read_link
from fedcome_flwr.simulation.run_config import AppError

DAY = dt.timedelta(days=1)


class Authority:
    """A certificate authority, and the certificates that it gives."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority {folder.name}")])
        self.path = folder / "ca.crt"
        self._write(self.path, self._build(self.name, self.key, -DAY, 100 * DAY, None))

    def give(self, host="127.0.0.1", start=-DAY, end=100 * DAY):
        """Paths of a certificate for the host and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        try:
            name = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            name = x509.DNSName(host)
        certificate, path = self.folder / f"{host}.pem", self.folder / f"{host}.key"
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        self._write(certificate, self._build(subject, key, start, end, name))
        encoding = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        path.write_bytes(key.private_bytes(*encoding))
        return certificate, path

    def _build(self, subject, key, start, end, name):
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder(self.name, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(now + start)
            .not_valid_after(now + end)
            .add_extension(x509.BasicConstraints(ca=name is None, path_length=None), critical=True)
        )
        if name is not None:
            builder = builder.add_extension(x509.SubjectAlternativeName([name]), critical=False)
        return builder.sign(self.key, hashes.SHA256())

    @staticmethod
    def _write(path, certificate):
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("keys") / "ours")


@pytest.fixture
def serve():
    """Start an HTTP server that is healthy, or not, and whose clock may be wrong; return its port."""
    servers = []

    def start(certificate=None, status=200, clock_ahead=0.0):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(status if self.path == "/health" else 404)
                self.end_headers()

            def date_time_string(self, timestamp=None):
                return super().date_time_string(dt.datetime.now().timestamp() + clock_ahead)

            def log_message(self, *arguments):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server.server_address[1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def listing(monkeypatch):
    """What the SuperLink says when it is asked for its nodes."""

    def answer(nodes=(), objection="", error=None):
        def list_nodes(link):
            if error:
                raise control_api.ControlApiError(error)
            return list(nodes), objection

        monkeypatch.setattr(control_api, "list_nodes", list_nodes)

    answer()
    return answer


def found(link, private_key=None, needed=0):
    """States, texts and advice by check; where a check found two things, the last."""
    return {finding.check: finding for finding in check_link(link, private_key, needed)}


def link(port, authority=None, host="127.0.0.1"):
    return Link(host, port, authority is None, authority.path if authority else None)


class TestAddress:
    def test_host_and_port(self, tmp_path):
        assert read_link("fl.example.org:8000") == Link("fl.example.org", 8000, False, None)
        assert read_link("[::1]:8000", insecure=True) == Link("::1", 8000, True, None)
        assert read_link("[::1]:8000").address == "[::1]:8000"
        assert read_link("a:1", tmp_path).root_certificates == tmp_path

    @pytest.mark.parametrize("text", ["a:", ":8000", "a:b", "a:0", "a:65536", "https://a", "https://a:1"])
    def test_what_is_no_address(self, text):
        with pytest.raises(AppError, match=r"as HOST:PORT, without https://, found"):
            read_link(text)

    def test_no_tls_and_certificates_exclude_each_other(self, tmp_path):
        with pytest.raises(AppError, match="--insecure or --root-certificates, found both"):
            read_link("a:1", tmp_path, insecure=True)

    def test_a_connection_of_flowers_configuration(self, tmp_path, monkeypatch):
        monkeypatch.setenv("FLWR_HOME", str(tmp_path))
        (tmp_path / "config.toml").write_text(
            '[superlink]\ndefault = "open"\n[superlink.open]\naddress = "a:1"\ninsecure = true\n'
            '[superlink.safe]\naddress = "b:2"\nroot-certificates = "/ca.crt"\n'
            '[superlink.local]\naddress = ":local:"\n[superlink.none]\n'
        )
        assert read_link("open") == Link("a", 1, True, None)
        safe = read_link("safe")
        assert (safe.address, safe.insecure, str(safe.root_certificates)) == ("b:2", False, "/ca.crt")
        with pytest.raises(AppError, match=r"found ':local:'; it runs in simulation"):
            read_link("local")
        with pytest.raises(AppError, match=r"connection 'none': expected the address HOST:PORT"):
            read_link("none")
        with pytest.raises(AppError, match=r"\(local, none, open, safe\), found 'other'"):
            read_link("other")

    def test_a_configuration_that_is_not_there_or_broken(self, tmp_path, monkeypatch):
        monkeypatch.setenv("FLWR_HOME", str(tmp_path))
        with pytest.raises(AppError, match=r"config.toml \(it has none\), found 'x'"):
            read_link("x")
        (tmp_path / "config.toml").write_text("[")
        with pytest.raises(AppError, match=r"config.toml is no valid TOML"):
            read_link("x")


class TestPort:
    def test_nothing_listens(self):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            findings = found(link(unused.getsockname()[1]))
        assert findings["port"].state == "problem"
        assert "nothing listens there" in findings["port"].text
        assert "--host 0.0.0.0" in findings["port"].advice
        assert findings["SuperLink"].state == "open"
        assert set(findings) == {"port", "SuperLink"}

    def test_nobody_has_the_name(self):
        finding = found(link(1, host="no-such-host.invalid"))["port"]
        assert (finding.state, finding.text) == ("problem", "no machine is called no-such-host.invalid")


class TestCertificate:
    def test_the_right_one(self, serve, listing, authority):
        findings = found(link(serve(authority.give()), authority))
        assert {name: finding.state for name, finding in findings.items()} == {
            "port": "ok",
            "certificate": "ok",
            "SuperLink": "ok",
            "clock": "ok",
            "versions": "ok",
            "nodes": "ok",
        }
        assert findings["certificate"].text == "from the trusted authority, for 127.0.0.1, 99 days left"

    def test_of_another_name(self, serve, listing, authority):
        finding = found(link(serve(authority.give("fl.example.org")), authority))["certificate"]
        assert finding.state == "problem"
        assert finding.text == "the server's certificate is for fl.example.org, not for 127.0.0.1"
        assert "that names 127.0.0.1" in finding.advice

    def test_of_another_authority(self, serve, listing, authority, tmp_path):
        other = Authority(tmp_path / "other")
        findings = found(link(serve(authority.give()), other))
        assert findings["certificate"].state == "problem"
        assert findings["certificate"].text == f"{other.path} does not vouch for the server's certificate (127.0.0.1)"
        assert findings["SuperLink"].state == "open"

    def test_that_this_machine_does_not_know(self, serve, listing, authority):
        secure = Link("127.0.0.1", serve(authority.give()), False, None)
        assert found(secure)["certificate"].text.startswith("this machine does not vouch for")

    def test_expired_or_not_yet_valid(self, serve, listing, authority):
        expired = found(link(serve(authority.give(start=-3 * DAY, end=-DAY)), authority))["certificate"]
        assert expired.state == "problem"
        assert expired.text.startswith("the certificate was valid 2")
        assert "clock if it is wrong, else make a new" in expired.advice
        early = found(link(serve(authority.give(start=DAY)), authority))["certificate"]
        assert early.state == "problem"
        assert early.text.startswith("the certificate is valid 2")
        assert "clock" in early.advice

    def test_that_ends_soon(self, serve, listing, authority):
        findings = found(link(serve(authority.give(end=10 * DAY)), authority))
        assert findings["certificate"].state == "warning"
        assert "9 days left" in findings["certificate"].text
        assert findings["SuperLink"].state == "ok"

    def test_that_does_not_name_the_loopback_address(self, serve, listing, authority):
        """The SuperLink's own processes connect to 127.0.0.1, and runs stay pending where they cannot."""
        finding = found(link(serve(authority.give("localhost")), authority, host="localhost"))["certificate"]
        assert finding.state == "warning"
        assert finding.text == "from the trusted authority, for localhost, 99 days left"
        assert "runs stay pending" in finding.advice

    def test_authority_that_cannot_be_read(self, serve, listing, tmp_path):
        port = serve()
        for path, text in ((tmp_path / "none.crt", "No such file"), (tmp_path / "empty.crt", "")):
            if not text:
                path.write_text("no certificate")
            finding = found(Link("127.0.0.1", port, False, path))["certificate"]
            assert finding.state == "problem"
            assert finding.text.startswith(f"{path} cannot be read: ")
            assert text in finding.text

    def test_tls_is_expected_and_not_there(self, serve, listing, authority):
        finding = found(link(serve(), authority))["certificate"]
        assert finding.state == "problem"
        assert finding.text.startswith("the SuperLink speaks no TLS")
        assert "--insecure" in finding.advice

    def test_tls_is_there_and_not_expected(self, serve, listing, authority):
        findings = found(link(serve(authority.give())))
        assert findings["certificate"].state == "warning"
        assert findings["SuperLink"].state == "open"  # the last of two
        texts = [finding.text for finding in check_link(link(serve(authority.give())), None, 0)]
        assert any(text.startswith("no HTTP answer") for text in texts)


class TestServer:
    def test_that_is_not_healthy(self, serve, listing):
        findings = list(check_link(link(serve(status=503)), None, 0))
        assert findings[2].text == "GET /health gives 503, not 200"
        assert findings[-1].state == "open"

    @pytest.mark.parametrize(
        ("ahead", "state", "words"),
        [
            (0, "ok", "agrees"),
            (60, "warning", "behind the server's"),
            (400, "problem", "behind the server's"),
            (-60, "problem", "ahead of the server's"),
        ],
    )
    def test_clock(self, serve, listing, ahead, state, words):
        finding = found(link(serve(clock_ahead=ahead)))["clock"]
        assert finding.state == state
        assert words in finding.text
        assert ("NTP" in finding.advice) == (state != "ok")

    def test_versions_that_do_not_agree(self, serve, listing):
        listing(objection="flwr 1.41 is too old")
        finding = found(link(serve()))["versions"]
        assert (finding.state, finding.text) == ("problem", "flwr 1.41 is too old")

    def test_that_lists_nodes_to_accounts_only_or_not_at_all(self, serve, listing):
        listing(error="401: no account")
        assert found(link(serve()))["nodes"].state == "open"
        listing(error="404: no such procedure")
        finding = found(link(serve()))["versions"]
        assert finding.state == "problem"
        assert "404: no such procedure" in finding.text


class TestNodes:
    NODES = (
        control_api.Node("a", "online", b"a"),
        control_api.Node("b", "offline", b"b"),
        control_api.Node("", "registered", b"c"),
        control_api.Node("d", "unregistered", b"d"),
    )

    def test_too_few_is_a_warning_with_the_names_of_those_away(self, serve, listing):
        listing(self.NODES)
        few, enough = found(link(serve()), needed=2)["nodes"], found(link(serve()), needed=1)["nodes"]
        assert (few.state, few.text) == ("warning", "1 online, 2 needed; not online: b, a nameless one")
        assert few.advice
        assert enough.state == "ok"

    @pytest.mark.parametrize("form", ["OpenSSH", "PKCS8"])
    def test_a_key_is_known_by_its_public_half(self, serve, listing, tmp_path, form):
        key = ec.generate_private_key(ec.SECP384R1())
        path = tmp_path / "device"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, getattr(serialization.PrivateFormat, form), serialization.NoEncryption()
            )
        )
        public = public_key_to_bytes(key.public_key())
        port = serve()
        for nodes, state, text in (
            ([], "problem", f"{path} is not registered at the SuperLink"),
            ([control_api.Node("site", "unregistered", public)], "problem", "is not registered"),
            ([control_api.Node("site", "registered", public)], "ok", "registered as site"),
            ([control_api.Node("site", "online", public)], "ok", "registered as site, and online now"),
            ([control_api.Node("", "offline", public)], "warning", "registered without a name"),
        ):
            listing([*self.NODES, *nodes])
            finding = found(link(port), path)["key"]
            assert (finding.state, text in finding.text) == (state, True), finding
        listing()
        assert "flwr supernode register device.pub" in found(link(port), path)["key"].advice

    def test_what_is_no_key(self, serve, listing, tmp_path):
        path = tmp_path / "device"
        finding = found(link(serve()), path)["key"]
        assert (finding.state, finding.text) == ("problem", f"{path}: No such file or directory")
        path.write_text("ecdsa-sha2-nistp384 AAAA")
        assert "is no private key without passphrase" in found(link(serve()), path)["key"].text
        encoding = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        key = rsa.generate_private_key(65537, 2048)
        path.write_bytes(key.private_bytes(*encoding, serialization.NoEncryption()))
        assert "expected an elliptic-curve key, found RSAPublicKey" in found(link(serve()), path)["key"].text
        secret = ec.generate_private_key(ec.SECP384R1())
        path.write_bytes(secret.private_bytes(*encoding, serialization.BestAvailableEncryption(b"x")))
        finding = found(link(serve()), path)["key"]
        assert "without passphrase" in finding.text
        assert "ssh-keygen -t ecdsa" in finding.advice


def test_waiting_is_bounded():
    """A server that accepts and says nothing is given up."""
    assert 0 < link_checks.TIMEOUT <= 30
