"""The options of a load test: declared once, for the command line, the environment and Locust's web page."""

from argparse import Namespace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec
from msgspec import Meta

from loadtest.errors import BadOption


class LoadSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is asked of the stack, and when. Times are seconds, rates are per second.

    Each field is an option of Locust's command line (``--slo-ttft``), of its environment (``LOCUST_SLO_TTFT``) and of
    the form on its page.
    """

    schedule: Annotated[
        str,
        Meta(description="Arrivals a second and for how long, in steps: 2:30,4:30 are plateaus, 1->10:60 is a ramp."),
    ] = "2:60"
    seed: Annotated[int, Meta(ge=0, description="Equal seeds give equal arrivals, questions and documents.")] = 0
    documents: Annotated[int, Meta(ge=1, description="Documents of the corpus that is made up and ingested.")] = 400
    document_words: Annotated[int, Meta(ge=1, description="Words of each of them.")] = 250
    questions: Annotated[
        str, Meta(description='File of questions to ask instead, as JSON lines {"query": ...}; nothing is ingested.')
    ] = ""
    trace: Annotated[
        str,
        Meta(description='File of questions and times, as JSON lines {"at": seconds, "query": ...}; no schedule then.'),
    ] = ""
    zipf: Annotated[
        float, Meta(ge=0, description="How uneven demand is: the question of rank r in proportion to 1/r**zipf.")
    ] = 1.0
    collection: Annotated[
        str, Meta(description="Collection to ask; by default the corpus' own, and the stack's default for a file.")
    ] = ""
    max_tokens: Annotated[int, Meta(ge=1, description="Longest answer, in tokens.")] = 64
    top_k: Annotated[int, Meta(ge=0, description="Chunks to answer from; 0: as many as the stack's default.")] = 0
    max_open: Annotated[
        int, Meta(ge=1, description="Streams open at once; arrivals beyond that are counted as missed, not sent.")
    ] = 1000
    timeout: Annotated[float, Meta(gt=0, description="Longest wait for an answer's end.")] = 300.0
    slo_ttft: Annotated[float, Meta(gt=0, description="Time to first token that a good answer keeps.")] = 1.0
    slo_itl: Annotated[float, Meta(gt=0, description="Mean time between tokens that a good answer keeps.")] = 0.1
    disconnect_share: Annotated[float, Meta(ge=0, le=1, description="Share of clients that leave in mid-stream.")] = 0.0
    ingest_rate: Annotated[float, Meta(ge=0, description="Documents taken in meanwhile.")] = 0.0
    delete_rate: Annotated[float, Meta(ge=0, description="Deletions of those documents.")] = 0.0
    report_dir: Annotated[str, Meta(description="Folder that gets a folder for each run.")] = "loadtest-reports"

    @classmethod
    def add_to(cls, parser: Any) -> None:  # noqa: ANN401 - Locust's parser takes more than argparse's
        """Declare the options to Locust's parser."""
        hints = get_type_hints(cls, include_extras=True)
        for field in msgspec.structs.fields(cls):
            kind, meta = hints[field.name].__origin__, hints[field.name].__metadata__[0]
            variable = f"LOCUST_{field.name.upper()}"
            parser.add_argument(
                f"--{field.name.replace('_', '-')}",
                type=kind,
                default=field.default,
                metavar=f"<{kind.__name__}>",
                env_var=variable,
                help=f"{meta.description} Default: {field.default!r}. [{variable}]".replace("%", "%%"),
            )

    @classmethod
    def of(cls, options: Namespace) -> "LoadSettings":
        """The settings of a parsed command line, or of the page's form. Raises BadOption."""
        values = {name: getattr(options, name) for name in cls.__struct_fields__}
        try:
            settings = msgspec.convert(values, cls, strict=False)
        except msgspec.ValidationError as error:
            raise BadOption(str(error)) from error
        if settings.questions and settings.trace:
            raise BadOption("questions and trace: only one of them says what is asked")
        return settings

    @property
    def reports(self) -> Path:
        """Where the folders of runs lie."""
        return Path(self.report_dir)
