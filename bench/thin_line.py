"""How long ready-made arrays take over a thin line, by kits over mutual TLS, beside what its bytes take.

    PYTHONPATH=. python bench/thin_line.py OUT [--sites 2] [--mb 120] [--rounds 3] [--rate 8Mbit] [--delay-ms 50]

Linux and root only: each hospital has a network namespace (`provisioning.namespaces`) with a wire of this rate, and a
forwarder of its own that hands every piece on after the delay, both ways. The sites train nothing (`ready_made`). A
model of 1 GiB:

    --rounds 1 --set "model={network: monai.networks.nets.UNet, normalization: instance, arguments: {channels: [64, 512,
    1346, 3264, 4096], strides: [2, 2, 2, 2]}}"
"""

import argparse
import asyncio
import json
import math
import os
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from server_memory import build_study

from provisioning.build_wheel import build_wheels
from provisioning.fill_kits import Contents, fill_kit, read_line
from provisioning.make_kits import make_kits, make_project
from provisioning.namespaces import Namespaces
from provisioning.network import Network
from provisioning.workspace import PROJECT, SITE_CONFIGS, find_kits, kits_folder
from silofl.base.files import read_json, write_json
from silofl.base.settings import dump_yaml
from silofl.federation.needs import traveling_bytes
from silofl.flare.line import parse_bandwidth
from silofl.setup.software import read_software
from silofl_desk.phantoms.phantoms import make_phantoms

PIECE, PIECES = 1 << 14, 16
LIMIT_S = 4 * 3600.0


def main() -> None:
    """Run the network, and print each round's seconds and what was estimated."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sites", type=int, default=2, choices=(2, 3))
    parser.add_argument("--mb", type=float, default=120, help="of a model, in float32; at most 400")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", default="8Mbit", help="of each hospital's wire")
    parser.add_argument("--delay-ms", type=float, default=50)
    parser.add_argument("--set", dest="choices", action="append", default=[])
    parser.add_argument("--port", type=int, default=8002, help="of the server, on this machine")
    parser.add_argument("--forward", nargs=2, metavar="ADDRESS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.forward:
        asyncio.run(forward(*options.forward, options.port, options.delay_ms / 1000))
        return
    out = options.out.resolve()
    project = make_project(PROJECT)
    hospitals = [one["name"] for one in project["participants"] if one["type"] == "client"][: options.sites]
    bits = parse_bandwidth(options.rate) * options.sites
    with ExitStack() as stack:
        spaces = stack.enter_context(Namespaces(hospitals, bits))
        address, beyond = spaces.server_address, spaces.server_address.rpartition(".")[0] + ".254"
        subprocess.run(["ip", "address", "add", f"{beyond}/24", "dev", f"silofl{address.split('.')[2]}"], check=True)
        for name in hospitals:
            # What the hospital takes for the server is the forwarder in its own network.
            words = ["ip", "address", "add", f"{address}/32", "dev", "lo"]
            subprocess.run(spaces.inside(name, words), check=True)
            words = [
                sys.executable,
                __file__,
                str(out),
                "--port",
                str(options.port),
                "--delay-ms",
                str(options.delay_ms),
            ]
            forwarder = subprocess.Popen(spaces.inside(name, [*words, "--forward", address, beyond]))
            stack.callback(forwarder.terminate)
        network = stack.enter_context(
            Network(make_network(out, (address, options.port), hospitals, bits), out / "logs", spaces)
        )
        job = write_job(out / "job", options, hospitals, bits)
        began = time.monotonic()
        number, status = network.run_job(job, LIMIT_S)
        print(f"the job took {time.monotonic() - began:.0f} s and is {status}")
        ledger = next(network.download(number, out / "results").rglob("silofl/ledger.json"))
        seconds = [record["seconds"] for record in json.loads(ledger.read_text())]
        print(f"seconds of the rounds: {', '.join(f'{one:.0f}' for one in seconds)}")


async def forward(address: str, beyond: str, port: int, delay_s: float) -> None:
    """Hand on what comes to an address after a delay, both ways."""

    async def hand_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        on_its_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(PIECES)

        async def send() -> None:
            while True:
                due, piece = await on_its_way.get()
                await asyncio.sleep(due - time.monotonic())
                if not piece:
                    break
                writer.write(piece)
                await writer.drain()
            writer.close()

        sending = asyncio.create_task(send())
        # A broken line ends as one that is closed.
        with suppress(OSError):
            while piece := await reader.read(PIECE):
                await on_its_way.put((time.monotonic() + delay_s, piece))
        await on_its_way.put((time.monotonic() + delay_s, b""))
        await sending

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(beyond, port)
        await asyncio.gather(hand_on(reader, far_writer), hand_on(far_reader, writer), return_exceptions=True)

    server = await asyncio.start_server(connect, address, port)
    await server.serve_forever()


def make_network(out: Path, address: tuple[str, int], hospitals: list[str], bits: float) -> Path:
    """Make the kits of a server, and of hospitals whose policy has sites that train nothing; returns the folder."""
    data = make_phantoms(out / "phantoms", 0)
    project = make_project(PROJECT, *address) | {"bandwidth": f"{bits / 1e6:g}Mbit"}
    left = [one for one in project["participants"] if one["type"] != "client" or one["name"] in hospitals]
    folder = make_kits(project | {"participants": left}, out / "kits")
    contents = Contents(build_wheels(folder / "wheel")[0], SITE_CONFIGS, data, line=read_line(project))
    for kit in find_kits(kits_folder(folder)):
        fill_kit(kit, contents)
        if kit.kind == "hospital":
            path = kit.folder / "local" / "resources.json"
            policy = read_json(path)
            write_json(path, policy | {"class_allow_list": [*policy["class_allow_list"], "ready_made.ReadyMade"]})
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    return folder


def write_job(job: Path, options: argparse.Namespace, hospitals: list[str], bits: float) -> Path:
    """Write the job of ready-made arrays, with time enough for the line, into a folder."""
    choices = [f"federation.sites=[{','.join(hospitals)}]", *options.choices]
    study = build_study(options.mb, options.rounds, options.sites, choices)
    seconds = options.sites * 2 * traveling_bytes(study) * 8 / bits
    federation = study.federation.model_copy(update={"task_timeout_s": max(600, math.ceil(3 * seconds))})
    study = study.model_copy(update={"federation": federation})
    print(f"{options.sites} sites, a model of {traveling_bytes(study) / 1e6:.0f} MB, each wire {options.rate}")
    print(f"the bytes of a round take {seconds:.0f} s")
    site = {"path": "ready_made.ReadyMade", "args": {"software": read_software().model_dump()}}
    form = {"format_version": 2, "components": []}
    server = {"workflows": [{"id": "rounds", "path": "silofl.flare.fedavg.FedAvgController", "args": {}}]}
    files = {
        "meta.json": {"name": "line", "deploy_map": {"app": ["@ALL"]}, "min_clients": options.sites},
        "app/config/config_fed_server.json": form | server | {"server": {"task_request_interval": 0.2}},
        "app/config/config_fed_client.json": form | {"executors": [{"tasks": ["*"], "executor": site}]},
    }
    for name, values in files.items():
        write_json(job / name, values)
    (job / "app/config/study.yaml").write_text(dump_yaml(study.model_dump(mode="json", exclude_none=True)))
    return job


if __name__ == "__main__":
    main()
