"""The memory and time of `silofl serve` over many cases, and what a crash of it loses.

    python bench/serving.py SUPERMODEL SERIES [--cases 1000]

SERIES is the folder of a DICOM series that the model answers. Each case is this series under UIDs of its own, sent by
C-STORE; an archive in this process takes the answers. At the end the service is killed over more cases, and started
again.
"""

import argparse
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pydicom
import yaml
from memory import memory_of
from pydicom.uid import generate_uid
from pynetdicom import AE, ALL_TRANSFER_SYNTAXES, evt
from pynetdicom.sop_class import Comprehensive3DSRStorage, SegmentationStorage

# How many cases the service is killed over.
MORE = 20
NAME, MIB = "ARCHIVE", 1 << 20


def send_case(port: int, series: Sequence[Path]) -> None:
    """Send a series under UIDs of its own."""
    images, study, uid = [pydicom.dcmread(path) for path in series], generate_uid(), generate_uid()
    entity = AE(ae_title=NAME)
    entity.add_requested_context(images[0].SOPClassUID, images[0].file_meta.TransferSyntaxUID)
    to = entity.associate("127.0.0.1", port, ae_title="SILOFL")
    for image in images:
        image.StudyInstanceUID, image.SeriesInstanceUID, image.SOPInstanceUID = study, uid, generate_uid()
        image.file_meta.MediaStorageSOPInstanceUID = image.SOPInstanceUID
        if status := to.send_c_store(image).get("Status", "no answer"):
            sys.exit(f"the service must take each file; it did not: {status}")
    to.release()


def start(model: Path, config: Path, port: int) -> psutil.Popen:
    """Start the service and return its process once it listens."""
    command = [sys.executable, "-m", "silofl", "serve", str(model), "--config", str(config)]
    service = psutil.Popen(command, stdout=subprocess.DEVNULL)
    wait(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)
    return service


def wait(condition: Callable[[], bool]) -> None:
    """Wait for what happens in another process."""
    while not condition():
        time.sleep(0.2)


def main() -> None:
    """Print memory and CPU seconds as cases come, then what became of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("series", type=Path)
    parser.add_argument("--cases", type=int, default=1000)
    given = parser.parse_args()
    series, kept, archive = sorted(given.series.glob("*")), Counter[str](), AE(ae_title=NAME)
    for context in (Comprehensive3DSRStorage, SegmentationStorage):
        archive.add_supported_context(context, ALL_TRANSFER_SYNTAXES)
    keep = [(evt.EVT_C_STORE, lambda event: kept.update([event.request.AffectedSOPInstanceUID]) or 0)]
    own = archive.start_server(("127.0.0.1", 0), block=False, evt_handlers=keep).server_address[1]
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        port, config = free.getsockname()[1], Path(folder) / "clinic.yaml"
        free.close()
        settings = {"folder": folder, "port": port, "wait_seconds": 1, "device": "cpu", "callers": {NAME: "127.0.0.1"}}
        to = {"ae_title": NAME, "address": "127.0.0.1", "port": own}
        config.write_text(yaml.safe_dump(settings | {"archive": to}))
        service = start(given.model, config, port)
        sent = before = 0
        for number in sorted({1, min(100, given.cases), given.cases // 2, given.cases} - {0}):
            for _ in range(number - sent):
                send_case(port, series)
            # Segmentation and report.
            wait(lambda number=number: len(kept) >= 2 * number)
            # Without the time in which it waited for the disk.
            used = sum(sum(one.cpu_times()[:4]) for one in (service, *service.children(recursive=True)))
            speed = f"{(used - before) / (number - sent):.2f} CPU seconds a case"
            print(f"{number} cases: {memory_of(service.pid) / MIB:.0f} MiB, {speed}", flush=True)
            sent, before = number, used
        for _ in range(MORE):
            send_case(port, series)
        wait(lambda: len(kept) > 2 * given.cases + MORE)
        service.kill()
        service.wait()
        service = start(given.model, config, port)
        wait(lambda: len([*Path(folder).glob("answers/*/sent.json")]) == given.cases + MORE)
        service.terminate()
        service.wait()
    print(f"killed over {MORE} more: {len(kept) // 2} answers, {sum(kept.values()) - len(kept)} files were sent twice")


if __name__ == "__main__":
    main()
