import socket
import subprocess
import threading
from contextlib import ExitStack

import pydicom
import pytest

from silofl.base.errors import ConfigError
from silofl_clinic.exams import ARRIVING, EXAMS, INCOMPLETE, JUDGED, Inbox
from silofl_clinic.receiver import MIB, MOST_CALLERS_AT_ONCE, NO_ROOM, NOT_ALLOWED, NOT_UNDERSTOOD, SUCCESS, Receiver

from .conftest import operating_point, send, until


@pytest.fixture
def receive(make_clinic):
    """Start a receiver by what differs in its settings; returns it, its inbox and a function that gives the port."""

    def make(**settings):
        clinic = make_clinic(**settings)
        inbox = Inbox(clinic)
        return Receiver(clinic, inbox), inbox, clinic.root

    return make


def arrived(root):
    return sorted(path.name for path in (root / ARRIVING).rglob("*.dcm"))


def test_an_exam_that_was_sent_lies_whole_in_its_folder(receive, write_exam):
    receiver, inbox, root = receive()
    files = write_exam("a")
    header = pydicom.dcmread(files[0])
    with receiver.listen() as port:
        assert send(port, files) == [SUCCESS] * 6
        until(lambda: not [*root.rglob(".unfinished")])
    assert [*inbox.settle()] == [(header.StudyInstanceUID, "")] and inbox.counts() == {"whole": 1}
    kept = {path.name: pydicom.dcmread(path) for path in (root / EXAMS).rglob("*.dcm")}
    for path in files:
        sent = pydicom.dcmread(path)
        assert kept[f"{sent.SOPInstanceUID}.dcm"] == sent
    assert (root / EXAMS / header.StudyInstanceUID / header.SeriesInstanceUID).is_dir()
    assert (root / EXAMS).stat().st_mode & 0o077 == 0


def test_an_exam_that_may_still_grow_waits(receive, write_exam):
    receiver, inbox, root = receive(wait_seconds=1000)
    with receiver.listen() as port:
        send(port, write_exam("a"))
    assert [*inbox.settle()] == [] and len(arrived(root)) == 6


@pytest.mark.parametrize("names", [{"ae_title": "STRANGER"}, {"called": "OTHER"}])
def test_a_system_that_is_not_named_gets_no_connection(receive, names):
    with receive()[0].listen() as port, operating_point(port, **names) as association:
        assert association.is_rejected


def test_an_allowed_name_from_another_address_is_refused(receive, write_exam):
    receiver, _, root = receive(callers={"ARCHIVE": "10.0.0.7", "CT1": "127.0.0.1"})
    with receiver.listen() as port:
        assert send(port, write_exam("a")[:1]) == [NOT_ALLOWED]
        with operating_point(port) as to:
            assert to.send_c_echo().Status == NOT_ALLOWED
    assert arrived(root) == [] and receiver.refusals == {("ARCHIVE", "not its address"): 1}


def test_who_may_send_must_be_named(receive):
    with (
        pytest.raises(ConfigError, match="callers of clinic.yaml is empty"),
        receive(callers={})[0].listen(),
    ):
        pass


def test_a_file_beyond_the_bound_ends_the_connection(receive, write_exam):
    receiver, _, root = receive(most_mib=1)
    (large,) = write_exam("a")[:1]
    data = pydicom.dcmread(large)
    data.add_new(0x00091010, "OB", bytes(2 * MIB))
    data.save_as(large)
    with receiver.listen() as port, operating_point(port) as to:
        assert "Status" not in to.send_c_store(data)
    assert arrived(root) == [] and receiver.refusals == {("ARCHIVE", "too large"): 1}


def test_a_full_disk_is_said_before_a_file_is_lost(receive, write_exam):
    receiver, _, root = receive(keep_free_gib=1_000_000)
    with receiver.listen() as port:
        assert send(port, write_exam("a")[:1]) == [NO_ROOM]
    assert arrived(root) == []


@pytest.mark.parametrize(
    ("key", "value"), [("StudyInstanceUID", ".."), ("SeriesInstanceUID", "../1"), ("SeriesInstanceUID", None)]
)
def test_an_exam_must_be_named_by_uids(receive, write_exam, key, value):
    receiver, _, root = receive()
    data = pydicom.dcmread(write_exam("a")[0])
    with pydicom.config.disable_value_validation():
        setattr(data, key, value)
        with receiver.listen() as port, operating_point(port) as to:
            assert to.send_c_store(data).Status == NOT_UNDERSTOOD
    assert arrived(root) == [] and not [*root.parent.glob("*.dcm")]


def test_a_broken_off_exam_lies_apart_until_it_comes_again(receive, write_exam):
    receiver, inbox, root = receive()
    files = write_exam("a")
    uid = pydicom.dcmread(files[0]).StudyInstanceUID
    with receiver.listen() as port:
        with operating_point(port) as to:
            to.send_c_store(pydicom.dcmread(files[0]))
            to.abort()
        until(lambda: not any(connection.is_alive() for connection in inbox.sending))
        assert [*inbox.settle()] == [(uid, "cut")] and (root / INCOMPLETE / "cut" / uid).is_dir()
        # The rest alone is enough: what came before is kept.
        send(port, files[1:])
        until(lambda: not [*(root / ARRIVING).rglob(".unfinished")])
    assert [*inbox.settle()] == [(uid, "")] and inbox.counts() == {"whole": 1}
    assert len([*(root / EXAMS).rglob("*.dcm")]) == 6


@pytest.mark.parametrize(("is_within_a_file", "cause"), [(False, ""), (True, "cut")])
def test_silence_between_files_ends_an_exam_and_within_cuts_it(
    receive, write_exam, monkeypatch, is_within_a_file, cause
):
    receiver, inbox, root = receive()
    monkeypatch.setattr("silofl_clinic.receiver.IDLE_SECONDS", 1)
    files = write_exam("a")
    with receiver.listen() as port:
        with operating_point(port) as to:
            for path in files:
                assert to.send_c_store(pydicom.dcmread(path)).Status == SUCCESS
            if is_within_a_file:
                # The head of a PDU whose rest does not come.
                to.dul.socket.send(bytes.fromhex("040000001000"))
            until(lambda: not any(connection.is_alive() for connection in inbox.sending))
        assert [state for _, state in inbox.settle()] == [cause]
    assert len([*root.rglob("*.dcm")]) == 6


@pytest.fixture
def impatient(monkeypatch):
    """Have a receiver wait a second where it waits half a minute for an association, and a minute for a message."""
    monkeypatch.setattr("silofl_clinic.receiver.ASSOCIATION_SECONDS", 1)
    monkeypatch.setattr("silofl_clinic.receiver.IDLE_SECONDS", 1)


def is_ended(connection, seconds=30):
    """Return whether the other side ends a connection in time."""
    connection.settimeout(seconds)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


def send_bytes(connection, stop):
    """Send a byte each 0.3 seconds until the connection is ended."""
    while not stop.wait(0.3):
        try:
            connection.sendall(b"\0")
        except OSError:
            return


def test_a_connection_from_an_unknown_address_is_ended_at_once(receive):
    receiver, _, _ = receive(callers={"ARCHIVE": "10.0.0.7"})
    with receiver.listen() as port, socket.create_connection(("127.0.0.1", port)) as outsider:
        assert is_ended(outsider)
    assert receiver.refusals == {("127.0.0.1", "its address is not in callers"): 1}


# Silent within the head, a byte now and then within a request of 1,024 bytes, and ended at once.
@pytest.mark.parametrize("way", ["silent", "slow", "ended"])
def test_connections_without_an_association_keep_no_place(receive, write_exam, request, way):
    if way != "ended":
        request.getfixturevalue("impatient")
    receiver, _, root = receive()
    stop = threading.Event()

    def is_taken():
        with operating_point(port) as to:
            return to.is_established and to.send_c_store(pydicom.dcmread(path)).Status == SUCCESS

    path = write_exam("a")[0]
    with receiver.listen() as port, ExitStack() as connections:
        connections.callback(stop.set)
        for _ in range(MOST_CALLERS_AT_ONCE + 2):
            connection = connections.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.sendall(b"\x01\x00")
            if way == "ended":
                connection.close()
            elif way == "slow":
                connection.sendall(bytes.fromhex("00000400"))
                threading.Thread(target=send_bytes, args=(connection, stop)).start()
        # All bytes of the slow request would take 300 seconds. Without a limit an ended one keeps its place for 30.
        until(is_taken, seconds=25)
    assert len(arrived(root)) == 1


def test_a_message_byte_by_byte_is_not_waited_for(receive, impatient):
    stop = threading.Event()
    with receive()[0].listen() as port, operating_point(port) as to:
        connection = to.dul.socket.socket
        # A PDU of 4,096 bytes with data.
        connection.sendall(bytes.fromhex("040000001000"))
        sender = threading.Thread(target=send_bytes, args=(connection, stop))
        sender.start()
        try:
            until(lambda: to.is_aborted, seconds=30)
        finally:
            stop.set()
            sender.join()


@pytest.mark.parametrize("is_associated", [False, True])
def test_a_message_that_states_too_many_bytes_is_not_read(receive, is_associated):
    with receive()[0].listen() as port, ExitStack() as stack:
        # 64 KiB and a byte as a request for an association, 1 MiB and a byte as data of one.
        if is_associated:
            to = stack.enter_context(operating_point(port))
            to.dul.socket.send(bytes.fromhex("040000100001"))
            until(lambda: to.is_aborted, seconds=30)
        else:
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.sendall(bytes.fromhex("010000010001"))
            assert is_ended(connection)


def test_a_deflated_file_is_not_taken(receive):
    from pydicom.uid import DeflatedExplicitVRLittleEndian, ExplicitVRLittleEndian
    from pynetdicom import AE
    from pynetdicom.sop_class import CTImageStorage

    entity = AE(ae_title="ARCHIVE")
    # Who can send it otherwise does.
    entity.add_requested_context(CTImageStorage, [DeflatedExplicitVRLittleEndian, ExplicitVRLittleEndian])
    with receive()[0].listen() as port:
        association = entity.associate("127.0.0.1", port, ae_title="SILOFL")
        assert association.accepted_contexts[0].transfer_syntax == [ExplicitVRLittleEndian]
        association.release()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Make two authorities, each with a certificate that it signed."""
    folder = tmp_path_factory.mktemp("tls")
    for name in ("own", "foreign"):
        for command in (
            f"req -x509 -newkey rsa:2048 -nodes -keyout {name}-ca.key -out {name}-ca.pem -subj /CN={name} -days 2",
            f"req -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.csr -subj /CN=system",
            f"x509 -req -in {name}.csr -CA {name}-ca.pem -CAkey {name}-ca.key -CAcreateserial -out {name}.pem -days 2",
        ):
            subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)
    return lambda name, ca="own": {
        "certificate": str(folder / f"{name}.pem"),
        "key": str(folder / f"{name}.key"),
        "authority": str(folder / f"{ca}-ca.pem"),
    }


def test_with_tls_only_who_shows_a_known_certificate_may_send(receive, make_clinic, write_exam, certificates):
    from silofl_clinic.receiver import make_tls

    receiver, _, root = receive(tls=certificates("own"))
    with receiver.listen() as port:
        foreign = make_tls(make_clinic(tls=certificates("foreign")), is_server=False)
        for options in ({}, {"tls_args": (foreign, "127.0.0.1")}):
            with operating_point(port, **options) as association:
                assert not association.is_established
        trusted = make_tls(make_clinic(tls=certificates("own")), is_server=False)
        assert send(port, write_exam("a"), tls_args=(trusted, "127.0.0.1")) == [SUCCESS] * 6


def test_certificates_that_do_not_belong_together_are_refused(receive, certificates):
    tls = certificates("own") | {"key": certificates("foreign")["key"]}
    with (
        pytest.raises(ConfigError, match="tls of clinic.yaml does not name three PEM files"),
        receive(tls=tls)[0].listen(),
    ):
        pass


def test_an_exam_put_away_while_files_come_loses_none(receive, write_exam, monkeypatch):
    receiver, inbox, root = receive()
    add = Inbox.add

    def add_while_it_is_put_away(self, content):
        folder = add(self, content)
        meanwhile = threading.Thread(target=lambda: [*inbox.settle()])
        meanwhile.start()
        meanwhile.join(0.2)
        return folder

    monkeypatch.setattr(Inbox, "add", add_while_it_is_put_away)
    with receiver.listen() as port:
        with operating_point(port) as to:
            for path in write_exam("a"):
                assert to.send_c_store(pydicom.dcmread(path)).Status == SUCCESS
            # Its sender may go on; it does not once it sends another one.
            assert [*inbox.settle()] == [] and len(arrived(root)) == 6
            monkeypatch.undo()
            assert to.send_c_store(pydicom.dcmread(write_exam("b")[0])).Status == SUCCESS
            assert [cause for _, cause in inbox.settle()] == [""] and len(arrived(root)) == 1
        until(lambda: not inbox.sending)
    assert [cause for _, cause in inbox.settle()] == [""]
    for folder in (root / EXAMS).iterdir():
        folder.rename(root / JUDGED / folder.name)
    assert [cause for _, cause in Inbox(receiver._clinic).settle()] == ["", ""]
    assert len([*(root / EXAMS).rglob("*.dcm")]) == 7


def test_with_tls_a_silent_connection_keeps_nobody_waiting(receive, make_clinic, write_exam, certificates):
    from silofl_clinic.receiver import make_tls

    receiver, _, _ = receive(tls=certificates("own"))
    trusted = make_tls(make_clinic(tls=certificates("own")), is_server=False)
    with receiver.listen() as port, socket.create_connection(("127.0.0.1", port)):
        sent = []
        caller = threading.Thread(
            target=lambda: sent.extend(send(port, write_exam("a")[:1], tls_args=(trusted, "127.0.0.1"))), daemon=True
        )
        caller.start()
        caller.join(30)
        assert sent == [SUCCESS]
