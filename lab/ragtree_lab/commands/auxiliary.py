"""``ragtree bench auxiliary``: fine-tunes an auxiliary model for the method `cacheclip`.

It learns to attend to what the engine's model attends to. Measures, on held-out questions, how far its attention is
from that of the engine's model before and after, and how much of the best 20 % of the tokens both have.
"""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ragtree_lab.commands.common.options import DEFAULT_DATA, DataOption, SeedOption
from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import load_config


def auxiliary(
    out: Annotated[Path, typer.Argument(help="New folder for the trained model: a generator.kv.auxiliary_model.")],
    model: Annotated[
        str | None, typer.Option(help="Model to train; by default generator.kv.auxiliary_model, or the shipped one.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Prompts to train on.")] = 100,
    held_out: Annotated[int, typer.Option(min=2, help="Questions to compare the models by.")] = 60,
    chunks: Annotated[int, typer.Option(min=2, help="Chunks of real text in a prompt.")] = 4,
    learning_rate: Annotated[float, typer.Option(min=0, help="Of AdamW.")] = 2e-5,
    corpus: Annotated[str, typer.Option(help="Question set whose documents and questions are used.")] = "squad",
    seed: SeedOption = 0,
    data: DataOption = DEFAULT_DATA,
    as_json: JsonOption = False,
) -> None:
    """Train a small model to attend to what the configured model attends to, for the method `cacheclip`."""
    from examine.composing.tasks import first
    from generator.models import SHIPPED, ModelStore
    from ragtree_lab.compose.set_tasks import auxiliary_tasks
    from ragtree_lab.fine_tuning.auxiliary_training import AuxiliaryTraining, Reading

    config = load_config()
    models = ModelStore(config.cache_dir)
    name = model or config.generator.kv.auxiliary_model or next(iter(SHIPPED))
    tasks = auxiliary_tasks(data, corpus, chunks, seed)
    # The first ones are held out, so that more steps train on more prompts and change nothing else.
    kept = first(tasks, held_out)
    training = [next(tasks) for _ in range(steps)]
    shown, asked = (
        [Reading(task.chunks, [one.question for one in task.asked]) for task in some] for some in (training, kept)
    )
    with StepBars() as show:
        trained = AuxiliaryTraining(models.resolve(config.generator.model), models.resolve(name), learning_rate, show)
        result = trained.run(shown, asked, out)
    if as_json:
        print_json(result)
        return
    table = Table("", "questions", "KL", "same tokens among the best 20 %")
    for title, scores in (("before", result.before), ("after", result.after)):
        table.add_row(title, str(scores.questions), f"{scores.kl:.3f}", f"{scores.jaccard:.1%}")
    results.print(table)
    results.print(f"Wrote {result.folder} after {result.steps} steps.", highlight=False)
