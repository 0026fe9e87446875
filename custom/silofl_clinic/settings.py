"""The settings of a clinic: clinic.yaml, which its commands read."""

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from silofl.base.settings import Count, Natural, Section

# DICOM's application entity: no backslash, no blanks at an end.
AeTitle = Annotated[str, Field(pattern=r"^[!-\[\]-~]([ -\[\]-~]{0,14}[!-\[\]-~])?$")]
Port = Annotated[Natural, Field(le=65535)]
Address = Annotated[str, AfterValidator(lambda text: str(ip_address(text)))]


class Tls(Section):
    """Certificates of DICOM over TLS, where both sides show theirs.

    Attributes:
        certificate: PEM file of this side.
        key: Its private key.
        authority: PEM file of who signs the other sides' certificates.
    """

    certificate: str
    key: str
    authority: str


class Archive(Section):
    """The archive that exams are fetched from and answers are sent to.

    Attributes:
        ae_title: Its name in DICOM's network.
        address: Its IP address.
        port: Its port.
    """

    ae_title: AeTitle
    address: Address
    port: Port


class SeriesRule(Section):
    """What a series must have that ``serve`` answers.

    Attributes:
        description: Its SeriesDescription, in which ``*`` stands for any letters, whatever their capitals.
        image_type: A word of its ImageType, for example AXIAL or ORIGINAL.
        plane: The plane of its slices.
        least_slices: Slices, or frames, that it must have.
    """

    description: str = "*"
    image_type: str | None = None
    plane: Literal["axial", "coronal", "sagittal"] | None = None
    least_slices: Count = 1


class Clinic(Section):
    """What a clinic's commands do.

    Attributes:
        folder: Where exams, answers and pseudonyms lie; readable by this account alone.
        ae_title: What other systems call this one.
        address: IP address at which exams are taken.
        port: Port at which exams are taken.
        callers: AE title -> IP address of the systems that may send, beside the archive; all others are refused.
        tls: Certificates; with them DICOM is spoken over TLS alone, to the archive too.
        archive: The archive, for ``fetch`` and for answers of ``serve``, which without it stay in the folder.
        wait_seconds: Seconds without a new file after which an exam or a series is complete.
        watched: Folder that another program fills with series for ``serve``; ``exams`` in ``folder`` if not given.
        most_mib: MiB that one file may have.
        keep_free_gib: GiB of the disk that stay free; files are refused before.
        has_pseudonyms: Whether exams are de-identified by DICOM's basic profile; key and table stay in the folder.
        modalities: Modalities that ``serve`` answers, for example ``[CT]``; all that are images if empty.
        series: Rules, of which a series must meet one to be answered; all but localizers are if there is none.
        threshold: Replaces the super model's own threshold.
        device: Where the model computes.
    """

    folder: str
    ae_title: AeTitle = "SILOFL"
    address: Address = "127.0.0.1"
    port: Port = 11112
    callers: dict[AeTitle, Address] = {}
    tls: Tls | None = None
    archive: Archive | None = None
    wait_seconds: Natural = 60
    watched: str | None = None
    most_mib: Count = 4096
    keep_free_gib: Natural = 1
    has_pseudonyms: bool = False
    modalities: tuple[str, ...] = ()
    series: tuple[SeriesRule, ...] = ()
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    device: Annotated[str, Field(pattern="^(auto|cpu|cuda)$")] = "auto"

    @property
    def allowed(self) -> dict[str, str]:
        """AE title -> IP address of all that may send."""
        return self.callers | ({self.archive.ae_title: self.archive.address} if self.archive else {})

    @property
    def root(self) -> Path:
        """The folder."""
        return Path(self.folder).expanduser()
