"""``ragtree bench fine-tuning``: fine-tunes the configured model to dependency attention.

It learns to answer from facts in trees, in which a token attends to its ancestors (DepCache). Measures, on held-out
questions, the loss and the share of exact answers with facts in trees and with every path in full, before and after.

Limits: made-up facts are of the gate's kinds, so a gate that is passed behind them says little of other questions.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from protocol.dependency import TreePositions
from services.cli.bench.common.options import SeedOption
from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import load_config

if TYPE_CHECKING:
    from generator.composing.dependency.fine_tuning.record import TuningRecord

_QUESTIONS = 6000


def fine_tuning(
    out: Annotated[Path, typer.Argument(help="New folder for the trained model: a generator.model.")],
    model: Annotated[str | None, typer.Option(help="Model to train; by default generator.model.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            help="Questions with their facts, as JSON lines: question, answers, paths, opening (docs/graph.md)."
        ),
    ] = None,
    questions: Annotated[
        int | None,
        typer.Option(min=0, help=f"Made-up questions to train on; by default {_QUESTIONS}, or none beside --file."),
    ] = None,
    held_out: Annotated[
        int, typer.Option(min=1, help="Questions to compare by, of the file and of those made up.")
    ] = 64,
    positions: Annotated[
        TreePositions | None,
        typer.Option(help="Positions of the tokens in trees; by default controller.graph_positions."),
    ] = None,
    learning_rate: Annotated[float, typer.Option(min=0, help="Of AdamW.")] = 2e-5,
    batch: Annotated[int, typer.Option(min=1, help="Questions a step.")] = 64,
    epochs: Annotated[int, typer.Option(min=1, help="How often each question is trained on.")] = 1,
    checkpoint_steps: Annotated[
        int | None, typer.Option(min=1, help="Write the model after each so many steps, to OUT-step-N.")
    ] = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Train the configured model to answer from facts in trees, in which a token attends to its ancestors."""
    from benchmarks.fine_tuning.curriculum import Curriculum, made_up, of_file
    from benchmarks.fine_tuning.fact_file import read_fact_tasks
    from benchmarks.fine_tuning.lessons import Lessons
    from generator.composing.dependency.fine_tuning.record import Recipe
    from generator.composing.dependency.fine_tuning.training import fine_tuned
    from generator.models import ModelStore
    from generator.prompts.layout import SegmentLayout
    from generator.prompts.tokenizer import ModelTokenizer

    config = load_config()
    asked = Curriculum([], [])
    if file is not None:
        asked = of_file(read_fact_tasks(file), held_out, seed)
    count = (_QUESTIONS if file is None else 0) if questions is None else questions
    if count:
        asked = asked.with_more(made_up(count, held_out, seed))
    folder = ModelStore(config.cache_dir).resolve(model or config.generator.model)
    tokenizer = ModelTokenizer(folder)
    placed = positions or config.controller.graph_positions
    lessons = Lessons(tokenizer, SegmentLayout.configured(tokenizer, config.generator), placed)
    recipe = Recipe(learning_rate, batch, epochs, placed, checkpoint_steps, seed)
    training, kept = lessons.exercises(asked.training), lessons.exercises(asked.held_out)
    with StepBars() as show:
        record = fine_tuned(folder, recipe, training, kept, out, show)
    if as_json:
        print_json(record)
        return
    _show(record)


def _show(record: "TuningRecord") -> None:
    table = Table("", "facts", "loss", "exact answers")
    for title, scores in (("before", record.before), ("after", record.after)):
        if scores is None:
            continue
        for facts, own in (("in trees", scores.dependency), ("in full", scores.self_attention)):
            table.add_row(title, facts, f"{own.loss:.3f}", f"{own.exact:.1%}")
    results.print(table)
    results.print(f"Wrote {record.folder} after {record.steps} steps.", highlight=False)
