"""``ragtree bench fine-tuning``: fine-tunes the configured model to dependency attention.

It learns to answer from facts in trees, in which a token attends to its ancestors (DepCache): from those of question
sets, from a file's and from made-up ones. Measures, on held-out questions of each source, the loss, the share of exact
answers and F1 with facts in trees and with every path in full, before and after.

Limits: made-up facts are of the gate's kinds, so a gate that is passed behind them says little of other questions.
"""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from protocol.dependency import TreePositions
from ragtree_lab.commands.common.options import DEFAULT_DATA, DataOption, SeedOption
from ragtree_lab.fine_tuning.record import LearnedAnswers
from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import load_config

if TYPE_CHECKING:
    from ragtree_lab.fine_tuning.record import TuningRecord

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
    chosen: Annotated[
        list[str] | None,
        typer.Option("--set", help="Question set to train on: a folder below --data. Can be given several times."),
    ] = None,
    set_questions: Annotated[
        int, typer.Option(min=1, help="Most questions of each set to train on: those whose facts state an answer.")
    ] = _QUESTIONS,
    questions: Annotated[
        int | None,
        typer.Option(
            min=0, help=f"Made-up questions to train on; by default {_QUESTIONS}, or none beside --set or --file."
        ),
    ] = None,
    held_out: Annotated[int, typer.Option(min=1, help="Questions to compare by, of each source.")] = 64,
    answers: Annotated[
        LearnedAnswers,
        typer.Option(
            help="Answers to learn: right ones, or the model's own with every path in full, which keep how it answers."
        ),
    ] = LearnedAnswers.RIGHT,
    positions: Annotated[
        TreePositions, typer.Option(help="Positions of the tokens in trees. A stack serves those at depth.")
    ] = TreePositions.DEPTH,
    learning_rate: Annotated[float, typer.Option(min=0, help="Of AdamW.")] = 2e-5,
    batch: Annotated[int, typer.Option(min=1, help="Questions a step.")] = 64,
    epochs: Annotated[int, typer.Option(min=1, help="How often each question is trained on.")] = 1,
    checkpoint_steps: Annotated[
        int | None, typer.Option(min=1, help="Write the model after each so many steps, to OUT-step-N.")
    ] = None,
    seed: SeedOption = 0,
    data: DataOption = DEFAULT_DATA,
    as_json: JsonOption = False,
) -> None:
    """Train the configured model to answer from facts in trees, in which a token attends to its ancestors."""
    from generator.models import ModelStore
    from generator.prompts.layout import SegmentLayout
    from generator.prompts.tokenizer import ModelTokenizer
    from ragtree_lab.fine_tuning.curriculum import Curriculum, made_up, of_file
    from ragtree_lab.fine_tuning.fact_file import read_fact_tasks
    from ragtree_lab.fine_tuning.lessons import Lessons
    from ragtree_lab.fine_tuning.record import Recipe
    from ragtree_lab.fine_tuning.set_questions import SetQuestions, open_sets
    from ragtree_lab.fine_tuning.training import DependencyTraining
    from ragtree_lab.graph.facts_reader import FactsReader

    config = load_config()
    asked: dict[str, Curriculum] = {}
    count = (0 if file or chosen else _QUESTIONS) if questions is None else questions
    if count:
        asked["made up"] = made_up(count, held_out, seed)
    if file is not None:
        asked[file.name] = of_file(read_fact_tasks(file), held_out, seed)
    sets = open_sets(data, chosen) if chosen else []
    folder = ModelStore(config.cache_dir).resolve(model or config.generator.model)
    tokenizer = ModelTokenizer(folder)
    lessons = Lessons(tokenizer, SegmentLayout.configured(tokenizer, config.generator), positions)
    recipe = Recipe(learning_rate, batch, epochs, positions, checkpoint_steps, seed, answers)
    with StepBars() as show:
        # In front of the sets: to read their graphs takes minutes.
        training = DependencyTraining.of(folder, recipe, out, lessons.f1, show)
        if sets:
            reader = FactsReader(config.retriever, config.retriever.graph.paths, show)
            asked |= asyncio.run(SetQuestions(reader, lessons.told).curricula(sets, set_questions, held_out, seed))
        record = training.run({name: lessons.source(curriculum) for name, curriculum in asked.items()})
    if as_json:
        print_json(record)
        return
    _show(record)


def _show(record: "TuningRecord") -> None:
    table = Table("questions", "trained on", "left out", "", "facts", "loss", "exact answers", "F1")
    for name, source in record.sources.items():
        counts = (name, f"{source.questions:,}", f"{source.left_out:,}")
        for title, scores in (("before", source.before), ("after", source.after)):
            if scores is None:
                continue
            for facts, own in (("in trees", scores.dependency), ("in full", scores.self_attention)):
                table.add_row(*counts, title, facts, f"{own.loss:.3f}", f"{own.exact:.1%}", f"{own.f1:.3f}")
                counts = ("", "", "")
    results.print(table)
    results.print(f"Wrote {record.folder} after {record.steps} steps.", highlight=False)
