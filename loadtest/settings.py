"""The options of a load test, declared once for the command line, the environment and Locust's web page."""

from argparse import Namespace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec
from msgspec import Meta

from loadtest.errors import BadOption


class LoadSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The traffic of a run and the objectives of its answers. Times are in seconds, rates per second.

    Each field is an option on Locust's command line (``--slo-ttft``), an environment variable (``LOCUST_SLO_TTFT``) and
    a field of the form on its web page.
    """

    schedule: Annotated[
        str,
        Meta(description="Arrivals per second and seconds, in steps: 2:30,4:30 are plateaus, 1->10:60 is a ramp."),
    ] = "2:60"
    seed: Annotated[int, Meta(ge=0, description="Equal seeds give equal arrivals, questions and documents.")] = 0
    documents: Annotated[int, Meta(ge=1, description="Number of synthetic documents to ingest.")] = 400
    document_words: Annotated[int, Meta(ge=1, description="Words per document.")] = 250
    questions: Annotated[
        str, Meta(description='File of questions, as JSON lines {"query": ...}. Nothing is ingested.')
    ] = ""
    trace: Annotated[
        str,
        Meta(description='File of timed questions, as JSON lines {"at": seconds, "query": ...}. No schedule then.'),
    ] = ""
    zipf: Annotated[
        float, Meta(ge=0, description="Skew of the demand: the question of rank r is asked in proportion to 1/r**zipf.")
    ] = 1.0
    collection: Annotated[
        str, Meta(description="Collection to query. Default: the corpus' own, or the stack's default with a file.")
    ] = ""
    max_tokens: Annotated[int, Meta(ge=1, description="Longest answer, in tokens.")] = 64
    top_k: Annotated[int, Meta(ge=0, description="Chunks to answer from. 0: the stack's default.")] = 0
    max_open: Annotated[
        int, Meta(ge=1, description="Most open streams. Further arrivals are counted as missed and not sent.")
    ] = 1000
    timeout: Annotated[float, Meta(gt=0, description="Timeout of a whole answer.")] = 300.0
    slo_ttft: Annotated[float, Meta(gt=0, description="Objective: time to first token.")] = 1.0
    slo_itl: Annotated[float, Meta(gt=0, description="Objective: mean time between tokens.")] = 0.1
    disconnect_share: Annotated[float, Meta(ge=0, le=1, description="Share of clients that disconnect early.")] = 0.0
    ingest_rate: Annotated[float, Meta(ge=0, description="Documents to ingest during the run.")] = 0.0
    delete_rate: Annotated[float, Meta(ge=0, description="Deletions of those documents.")] = 0.0
    report_dir: Annotated[str, Meta(description="Folder for the folders of runs.")] = "loadtest-reports"

    @classmethod
    def add_to(cls, parser: Any) -> None:  # noqa: ANN401 - Locust's parser takes more than argparse's
        """Add the options to Locust's parser."""
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
        """Create the settings from a parsed command line or the web form. Raises BadOption."""
        values = {name: getattr(options, name) for name in cls.__struct_fields__}
        try:
            settings = msgspec.convert(values, cls, strict=False)
        except msgspec.ValidationError as error:
            raise BadOption(str(error)) from error
        if settings.questions and settings.trace:
            raise BadOption("questions and trace cannot be combined")
        return settings

    @property
    def reports(self) -> Path:
        """The folder that contains the folders of all runs."""
        return Path(self.report_dir)
