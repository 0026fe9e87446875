import gc
import importlib.util
import json
import os
import re
import shutil
import socket
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path

# Before NumPy is loaded, and for all processes that tests start: on a busy machine the threads of linear algebra wait
# for one another by computing, for longer than one thread needs.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pydicom
import pytest
import torch
import yaml
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.pixels import pack_bits
from pydicom.uid import (
    CTImageStorage,
    EnhancedMRImageStorage,
    ExplicitVRLittleEndian,
    SegmentationStorage,
    generate_uid,
)

from silofl.base.settings import parse
from silofl.command_line.cli import main
from silofl.data.batches import training_batches
from silofl.data.transforms import build_augmentation
from silofl.federation.checkpoint import checkpoint, restore_run
from silofl.federation.course import Answers, Course, separate_failures
from silofl.federation.ledger import mark_round
from silofl.federation.server import ServerRounds
from silofl.federation.site import SiteRounds
from silofl.federation.state import SiteState
from silofl.flare.components import name_components
from silofl.reading.decoded import Unpacked
from silofl.setup.site import Site
from silofl.study import Study
from silofl.training.device import derive_seed
from silofl.training.site_score import SiteScore

JOBS = Path(__file__).resolve().parents[1] / "jobs"
SHARED = Path(__file__).resolve().parents[2] / "shared"
AXES = np.eye(3)
LABELMAP = "1.2.840.10008.5.1.4.1.1.66.7"
MEMORY, ROOM = Path("/dev/shm"), 8 << 30
UNET = {"features": [4, 4, 4, 4, 4, 4], "normalization": "batch"}
# Of two levels: with the five of `unet`, a run's time goes into building networks, and into writing and reading states.
SMALL_UNET = {
    "network": "monai.networks.nets.UNet",
    "arguments": {"channels": [4, 4], "strides": [2]},
    "normalization": "batch",
}
DROPPING = SMALL_UNET | {"arguments": SMALL_UNET["arguments"] | {"dropout": 0.3}}

# What a site computes with by default; more threads only get in each other's way on a busy machine.
torch.set_num_threads(1)


def pytest_configure():
    """Keep the tests' files in memory where it is large: each is flushed, and a fifth of their time would go by so."""
    is_usable = MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
    if is_usable and shutil.disk_usage(MEMORY).free >= ROOM:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    # To look through all that the libraries have made, each time that a little is added, takes a seventh of the time.
    gc.set_threshold(50_000, 20, 50)


def pytest_ignore_collect(collection_path, config):
    """Do not read files of which no test is asked for: of 400 each takes a twentieth of a second, in every process."""
    if collection_path.suffix != ".py" or collection_path.is_dir():
        return None
    asked, text = config.option.markexpr, collection_path.read_text(encoding="utf-8")
    marks = re.findall(r"^pytestmark = \[?pytest\.mark\.(\w+)", text, re.MULTILINE)
    is_left_out = any(f"not {mark}" in asked for mark in marks) or (
        asked.startswith("long") and "mark.long" not in text
    )
    return is_left_out or None


def case_builder(script, root):
    """Return a function that builds a case of a script in SHARED's cases, each once in a folder of `root`."""
    path = SHARED / "cases" / script
    if not path.is_file():
        pytest.skip("no built inputs beside the repository")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def build(name):
        if not (root / name).is_dir():
            module.main(name, root / name)
        return root / name

    return build


@contextmanager
def set_umask(mask=0):
    """Be the least careful account, or one that has another umask."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def readable_by_others(root):
    """Return the paths of a folder, itself included, that another account may read."""
    found = (path for path in (root, *root.rglob("*")) if not path.is_symlink())
    return [path for path in found if path.lstat().st_mode & 0o077]


def change_json(path, **changes):
    """Change keys of a file of JSON; None takes a key away."""
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def list_records(content):
    """Return the records of all parts of a dataset.json."""
    return [record for part in ("training", "validation", "test") for record in content[part]]


def records_of(content):
    """Return case -> its record in a dataset.json."""
    return {record["case"]: record for record in list_records(content)}


def score(value):
    """Return the score of one case."""
    return SiteScore(value=value, num_cases=1, num_excluded=0)


def count_cases(results):
    """Return site -> its test cases, by the content of results.json."""
    return {site: one["num_cases"] for site, one in results["sites"].items()}


@pytest.fixture(autouse=True)
def decoding(decoded_here):
    """Start no process for decoders; the rooms whose tests are of reading and of whole runs do."""


@pytest.fixture
def decoded_here(monkeypatch):
    """Decode files in this process: every site of every run would start another one, for as long as its training."""

    def decode(request):
        asked = json.loads(request)
        module, function = asked["reader"].split(".")
        read = getattr(import_module(f"silofl.reading.{module}"), function)
        decoded = read(Path(asked["path"]), asked["name"], **asked["options"])
        # What comes from another process is nobody else's.
        if isinstance(decoded, Unpacked):
            return decoded._replace(content=np.frombuffer(bytearray(b"".join(decoded.content)), np.uint8))
        return decoded._replace(array=decoded.array.copy(order="K"))

    monkeypatch.setattr("silofl.reading.formats.decode_in_subprocess", decode)
    monkeypatch.setattr("silofl.data.site_data.decode_ahead", nullcontext)


@pytest.fixture
def vectors():
    """Reference numbers of one room, computed in float64 from the papers' formulas."""

    def load(name):
        path = SHARED / "vectors" / f"{name}.npz"
        if not path.is_file():
            pytest.skip(f"no reference numbers at {path.name}")
        return np.load(path)

    return load


@pytest.fixture
def real_data():
    """Folder of one real data set."""

    def find(name):
        path = SHARED / "data" / name
        if not path.is_dir():
            pytest.skip(f"no real data {name}")
        return path

    return find


@pytest.fixture(scope="session")
def free_port():
    """Find a port on which nothing listens, of a range that no other test process takes from meanwhile."""
    # Below the ports that the system gives to the near ends of connections.
    first, count = 20000 + os.getpid() % 300 * 40, 40
    ports = iter(range(first, first + count))

    def find():
        for port in ports:
            with socket.socket() as probe:
                try:
                    probe.bind(("", port))
                except OSError:
                    continue
                return port
        raise RuntimeError(f"a port from {first} to {first + count - 1} must be free; all of them are in use")

    return find


# Of a study of `windows`; rounds, training and algorithm are each test's.
WINDOWS = {
    "name": "small",
    "task": "classification",
    "labels": {0: "slow", 1: "fast"},
    "metric": "accuracy",
    "device": "cpu",
    "data": {"channels": 3, "intensity": "raw", "split_unit": "recordings"},
    "model": {"name": "activity_cnn"},
}


@pytest.fixture(scope="session")
def windows(tmp_path_factory):
    """Three sites with windows (3, 1, 64) of two movements, slow and fast; every site's sensor has its own offset."""
    root = tmp_path_factory.mktemp("windows")
    for seed, (name, counts) in enumerate({"ann": (28, 24), "bob": (24, 26), "eva": (10, 6)}.items()):
        rng, folder = np.random.default_rng(seed), root / name
        labels = np.repeat([0, 1], counts)
        phase = np.arange(64) * np.where(labels, 0.8, 0.2)[:, None] + rng.uniform(0, 6, (len(labels), 1))
        signal = np.sin(phase)[:, None] * np.ones((1, 3, 1)) + rng.normal(seed, 0.3, (len(labels), 3, 64))
        folder.mkdir()
        np.savez(folder / "windows.npz", windows=signal.astype(np.float32))
        content = {"task": "classification", "labels": {"0": "slow", "1": "fast"}, "split_unit": "recordings"}
        for part, remainder in (("training", 0), ("test", 1)):
            content[part] = [
                {"image": "windows.npz", "index": i, "label": int(label), "patient": name, "recording": f"r{i}"}
                for i, label in enumerate(labels)
                if i % 2 == remainder
            ]
        (folder / "dataset.json").write_text(json.dumps(content))
    return root


@pytest.fixture
def write_windows_job(tmp_path):
    """Write a variant of a job of the repository for `windows`."""

    def write(name, algorithm=None, **changes):
        job = tmp_path / "jobs" / name
        shutil.copytree(JOBS / name, job)
        path = job / "app" / "config" / "study.yaml"
        study = yaml.safe_load(path.read_text()) | {"labels": {0: "slow", 1: "fast"}, "rounds": 4}
        study["training"]["batch_size"] = 4
        study["algorithm"] = (algorithm or study["algorithm"]) | changes
        path.write_text(yaml.safe_dump(study))
        name_components(path.parent, study["algorithm"]["name"])
        return job

    return write


@pytest.fixture
def write_dicom():
    """Write a volume (X, Y, Z) of 16-bit integers as a CT series; direction's columns are its axes in DICOM's world."""

    def write(folder, volume, direction=AXES, spacing=(0.5, 0.75, 2), origin=(10, 20, 30), skip=()):
        folder.mkdir()
        series, study = generate_uid(), generate_uid()
        for z in range(volume.shape[2]):
            if z in skip:
                continue
            meta = FileMetaDataset()
            meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = CTImageStorage, generate_uid()
            meta.TransferSyntaxUID = ExplicitVRLittleEndian
            data = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
            data.SOPClassUID, data.SOPInstanceUID = CTImageStorage, meta.MediaStorageSOPInstanceUID
            data.SeriesInstanceUID, data.StudyInstanceUID, data.Modality, data.PatientID = series, study, "CT", "p1"
            data.ImagePositionPatient = np.round(origin + direction[:, 2] * spacing[2] * z, 8).tolist()
            data.ImageOrientationPatient = np.round(direction[:, :2].T.ravel(), 8).tolist()
            data.PixelSpacing, data.SliceThickness = [spacing[1], spacing[0]], spacing[2]
            data.InstanceNumber, data.Rows, data.Columns = z + 1, volume.shape[1], volume.shape[0]
            data.SamplesPerPixel, data.PhotometricInterpretation = 1, "MONOCHROME2"
            data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = 16, 16, 15, 1
            data.RescaleSlope, data.RescaleIntercept = 1, 0
            data.PixelData = np.ascontiguousarray(volume[:, :, z].T).tobytes()
            # Names in the wrong order: the position says where a slice lies.
            pydicom.dcmwrite(folder / f"{99 - z}.dcm", data)
        return folder

    return write


@pytest.fixture
def write_series_to_segment(tmp_path, write_dicom):
    """Write a series of voxels of 0.5 x 0.75 x 2 mm, with its frame of reference."""

    def write(shape):
        folder = write_dicom(tmp_path / "series", np.zeros(shape, np.int16))
        frame = generate_uid()
        for path in folder.iterdir():
            header = pydicom.dcmread(path)
            header.FrameOfReferenceUID = frame
            pydicom.dcmwrite(path, header)
        return folder

    return write


@pytest.fixture
def write_segmentation(tmp_path):
    """Write frames, each as (number of its segment, slice, pixels), as a DICOM segmentation; names are by number."""

    def save(series, frames, names, kind="BINARY"):
        source = pydicom.dcmread(next(series.iterdir()))
        data = pydicom.Dataset()
        data.file_meta = pydicom.dataset.FileMetaDataset()
        data.SOPClassUID = data.file_meta.MediaStorageSOPClassUID = (
            LABELMAP if kind == "LABELMAP" else SegmentationStorage
        )
        data.SOPInstanceUID = data.file_meta.MediaStorageSOPInstanceUID = generate_uid()
        data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        data.Modality, data.SegmentationType, data.PatientID = "SEG", kind, "p1"
        data.FrameOfReferenceUID, data.NumberOfFrames = source.FrameOfReferenceUID, len(frames)
        data.Rows, data.Columns = frames[0][2].T.shape
        data.SamplesPerPixel, data.PhotometricInterpretation, data.PixelRepresentation = 1, "MONOCHROME2", 0
        data.BitsAllocated, data.BitsStored, data.HighBit = 1, 1, 0
        data.SegmentSequence = []
        for number, name in names.items():
            segment = pydicom.Dataset()
            segment.SegmentNumber, segment.SegmentLabel = number, name
            data.SegmentSequence.append(segment)
        shared = group("PlaneOrientationSequence", ImageOrientationPatient=[1, 0, 0, 0, 1, 0])
        shared.update(group("PixelMeasuresSequence", PixelSpacing=[0.75, 0.5], SliceThickness=2))
        data.SharedFunctionalGroupsSequence, data.PerFrameFunctionalGroupsSequence = [shared], []
        for number, z, _ in frames:
            one = group("PlanePositionSequence", ImagePositionPatient=[10, 20, 30 + 2 * z])
            one.update(group("SegmentIdentificationSequence", ReferencedSegmentNumber=number))
            data.PerFrameFunctionalGroupsSequence.append(one)
        data.PixelData = pack_bits(np.stack([pixels.T for *_, pixels in frames]))
        path = tmp_path / "seg.dcm"
        data.save_as(path, enforce_file_format=True)
        return path

    return save


@pytest.fixture
def write_frames(write_dicom, tmp_path):
    """Write an MR volume (X, Y, Z) as one file with a frame for each of some slices, in their order, in a folder."""

    def write(volume, slices=range(5), has_spacing=True, aside=0):
        data = pydicom.dcmread(write_dicom(tmp_path / "slices", volume[..., :1]) / "99.dcm")
        data.SOPClassUID = data.file_meta.MediaStorageSOPClassUID = EnhancedMRImageStorage
        data.Modality, data.NumberOfFrames = "MR", len(slices)
        for name in ("PixelSpacing", "ImagePositionPatient", "ImageOrientationPatient", "SliceThickness"):
            delattr(data, name)
        shared = group("PlaneOrientationSequence", ImageOrientationPatient=[1, 0, 0, 0, 1, 0])
        if has_spacing:
            size = {"PixelSpacing": [0.75, 0.5], "SliceThickness": 2, "SpacingBetweenSlices": 2}
            shared.update(group("PixelMeasuresSequence", **size))
        data.SharedFunctionalGroupsSequence = [shared]
        data.PerFrameFunctionalGroupsSequence = [
            group("PlanePositionSequence", ImagePositionPatient=[10, 20 + aside * z, 30 + 2 * z]) for z in slices
        ]
        data.PixelData = np.stack([volume[..., int(z)].T for z in slices]).tobytes()
        (tmp_path / "series").mkdir()
        data.save_as(tmp_path / "series" / "frames.dcm")
        return tmp_path / "series"

    return write


def assert_alike(left, right):
    """Check that two mappings hold the same arrays."""
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def group(name, **elements):
    """Return one functional group of a file with many frames as DICOM nests it."""
    inner, outer = Dataset(), Dataset()
    for key, value in elements.items():
        setattr(inner, key, value)
    setattr(outer, name, [inner])
    return outer


@pytest.fixture(scope="session")
def make_study():
    """Build a small study of segmentation by its rounds, its network and its algorithm."""

    def make(
        rounds=3,
        seed=0,
        model=None,
        federation=None,
        training=None,
        baseline_comparison=False,
        network=UNET,
        **algorithm,
    ):
        return parse(
            Study,
            {
                "name": "small",
                "task": "segmentation",
                "labels": {1: "blob"},
                "rounds": rounds,
                "seed": seed,
                "baseline_comparison": baseline_comparison,
                "device": "cpu",
                "data": {"augment": [{"RandFlip": {"prob": 0.5, "spatial_axis": 0}}]},
                "model": {**network, **(model or {})},
                "training": {"batch_size": 2, "learning_rate": 0.01, **(training or {})},
                "algorithm": {"name": "fedavg", **algorithm},
                # Many tests are of one site alone.
                "federation": {"min_sites": 1} | (federation or {}),
            },
            "study.yaml",
        )

    return make


def write_site(folder, seed, counts):
    """Write a site's images and truths into one file of arrays, which needs no decoders' process to be read."""
    rng, images, truths = np.random.default_rng(seed), [], []
    folder.mkdir(parents=True)
    content = {"task": "segmentation", "labels": {"1": "blob"}}
    for part, count in counts.items():
        content[part] = []
        for i in range(count):
            truth = np.zeros((32, 32), np.uint8)
            row, column = rng.integers(2, 18, 2)
            truth[row : row + 12, column : column + 12] = 1
            image = np.clip(rng.normal(60 + 20 * seed, 10, (32, 32)) + 90 * truth, 0, 255).astype(np.uint8)
            record = {"image": "site.npz", "label": "site.npz", "index": len(images), "patient": f"{part}{i}"}
            content[part].append(record)
            images.append(image)
            truths.append(truth)
    np.savez(folder / "site.npz", images=images, labels=truths)
    (folder / "dataset.json").write_text(json.dumps(content))


@pytest.fixture(scope="session")
def site_data(tmp_path_factory):
    """Three sites with a few tiny random images: 5, 4 and 3 to train with."""
    root = tmp_path_factory.mktemp("sites")
    for seed, (name, training) in enumerate({"east": 5, "north": 4, "west": 3}.items()):
        write_site(root / name, seed, {"training": training, "validation": 2, "test": 2})
    return root


def simulated_site(data, folder, min_patients=0, min_partners=0):
    """Return the settings of all sites of a simulation, with their states in a folder."""
    return Site(
        data=f"{data}/{{site}}",
        state_dir=f"{folder}/{{site}}",
        cache_dir=f"{data}/.cache",
        has_progress=False,
        min_patients=min_patients,
        min_partners=min_partners,
    )


@pytest.fixture
def settings_in(site_data):
    """Return the settings of all sites, with their states in a folder."""
    return partial(simulated_site, site_data)


class Play:
    """A run whose sites are in this process; its own course carries it out, as far as a test wants it.

    Attributes:
        sites: Name -> the site.
        server: The run at the server.
        asked: Names of the tasks so far.
        sent: Task -> what each site was sent the last time.
        answers: Task -> what each site answered the last time.
        warnings: What the course said for the log.
    """

    def __init__(self, study, data, folder, sites, pretrained=None, min_patients=0, min_partners=0):
        self.study, self.settings = study, simulated_site(data, folder, min_patients, min_partners)
        self.sites = {name: SiteRounds(name, study, self.settings) for name in sites}
        self.server = ServerRounds.start(study, "run", list(sites), pretrained)
        self.asked, self.sent, self.answers, self.warnings = [], {}, {}, []
        self.absent, self.change = (), None

    def ask(self, task, messages):
        """Carry a task to the sites that are there, and what a test makes of their answers back."""
        present = [site for site in messages if site not in self.absent]
        given = {site: self.sites[site].answer(task, messages[site]) for site in present}
        if self.change:
            given = {site: self.change(task, site, answer) for site, answer in given.items()}
        self.asked.append(task)
        self.sent[task], self.answers[task] = dict(messages), given
        return separate_failures(given, sorted(set(messages) - set(present)))

    def round(self, absent=(), change=None):
        """Carry out one more round, without some sites or with changed answers; returns the ledger's record."""
        return self.rounds(1, absent, change)

    def rounds(self, count, absent=(), change=None):
        """Carry out some more rounds; returns the record of the last one."""
        self.absent, self.change = absent, change
        goal, is_over = self.server.finished_rounds + count, []

        def save():
            is_over[:] = [True] * (self.server.finished_rounds >= goal)

        Course(self.server, self.ask, save, self.warnings.append, lambda: bool(is_over)).run()
        return self.server.ledger[-1]

    def finish(self, absent=(), change=None, **hooks):
        """Carry out all that is left; returns the sites' tests."""
        self.absent, self.change = absent, change
        return Course(self.server, self.ask, warn=self.warnings.append, **hooks).run()

    def resume(self):
        """Go on from the server's checkpoint, as a server that was restarted does."""
        self.server = restore_run(self.study, checkpoint(self.server))

    def ask_for(self, rounds):
        """Go on from the server's checkpoint to another number of rounds, as ``--set rounds=N`` does."""
        values = self.study.model_dump() | {"algorithm": self.study.algorithm.model_dump(), "rounds": rounds}
        self.take(parse(Study, values, "study.yaml"))

    def take(self, study):
        """Go on from the server's checkpoint with a changed study, as a job that goes on has it."""
        self.study = study
        self.sites = {name: SiteRounds(name, study, self.settings) for name in self.sites}
        self.resume()

    def goes_on_as(self, whole):
        """Check that after 2 rounds, a restart of the server and one more the models are those of 3 rounds on end."""
        whole.rounds(3)
        self.rounds(2)
        self.resume()
        self.round()
        for name, array in whole.models("east").items():
            np.testing.assert_array_equal(array, self.models("east")[name])

    def upcoming(self, task):
        """Return what each site is sent the next time with a task; only what comes before it is carried out."""
        found = {}

        def ask(name, messages):
            if name == task:
                found.update(messages)
            return Answers({}, {}) if found else self.ask(name, messages)

        Course(self.server, ask, is_aborted=lambda: bool(found)).run()
        return found

    def models(self, site):
        """Return a site's models at the server, ``role/name`` -> array."""
        parts = {role: self.server.parts[role] for role in self.study.recipe.traveling_roles}
        return {f"{role}/{name}": array for role, part in parts.items() for name, array in part.of(site).items()}

    def epochs(self, site, number):
        """Return the batches of each epoch of a site's round, as it draws them itself."""
        study, examples = self.study, self.sites[site].data.training
        augment = build_augmentation(study, examples.targets.ndim > 1)
        seeds = range(1, study.training.local_epochs + 1)
        seeds = [derive_seed(study.seed, site, number, epoch) for epoch in seeds]
        cpu, size = torch.device("cpu"), study.training.batch_size
        return [list(training_batches(examples, size, augment, seed, cpu)) for seed in seeds]

    def folder(self, site):
        """Return a site's folder of the run."""
        return self.settings.run_folder("small", site, "run")

    def kept(self, site, number):
        """Return what a site's parts kept at home after a round."""
        return SiteState(self.folder(site) / "rounds", "run", site).load(number)[1]


@pytest.fixture
def play(tmp_path, site_data, make_study):
    """Begin a run by its sites and its study."""

    def start(
        sites=("east", "north", "west"),
        folder="state",
        study=None,
        pretrained=None,
        min_patients=0,
        min_partners=0,
        data=site_data,
        **options,
    ):
        return Play(
            study or make_study(**options), data, tmp_path / folder, sites, pretrained, min_patients, min_partners
        )

    return start


@pytest.fixture
def undrawn(monkeypatch):
    """Encode no figure of a page whose words are read, for that takes nine tenths of a page's time."""
    monkeypatch.setattr("silofl_hospital.report.canvas.encode_png", lambda *_, **__: b"\x89PNG")
    monkeypatch.setattr("silofl_hospital.report.canvas.encode_svg", lambda *_: b"<svg/>")


@pytest.fixture
def no_simulator(monkeypatch):
    """Start no simulator, and fail where one gets a job."""

    class Idle:
        def __init__(self, command):
            self.end = lambda: None

        def tell(self, text):
            pytest.fail("nothing may be run")

    monkeypatch.setattr("silofl_desk.studies.runs.simulate.ProcessTree", Idle)


@pytest.fixture
def script(capsys, monkeypatch, tmp_path):
    """Run a script's main in a folder of the test's own; returns exit code, output and error output."""
    # A path that should be refused can do no harm there.
    monkeypatch.chdir(tmp_path)

    def run(main, *arguments):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as ending:
            code = ending.code
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def silofl(script, no_simulator):
    """Run a command line in this process, as `script` does."""
    return partial(script, main)


def mark_best(ledger):
    """Mark the best rounds of a ledger, one after the other, as a server does after each; return it."""
    for number, record in enumerate(ledger):
        mark_round(record, ledger[:number])
    return ledger


@pytest.fixture
def refused(silofl):
    """Run a command line that must be refused: exit code 2 and one sentence on standard error, which is returned."""

    def run(*arguments):
        code, out, error = silofl(*arguments)
        assert (code, out) == (2, "")
        assert error.startswith("silofl") and error.endswith("\n") and error.count("\n") == 1
        assert "Traceback" not in error and "_natural" not in error
        return error

    return run
