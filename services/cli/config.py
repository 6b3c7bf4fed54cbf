"""``ragtree config``: shows the configuration."""

import json
from collections.abc import Iterator

import typer
from pydantic import BaseModel

from services.config import config_file, load_config

app = typer.Typer(help="Show the configuration.", no_args_is_help=True)


@app.command()
def show() -> None:
    """Print the current configuration as YAML, with each option's description. Secrets are masked."""
    source = config_file()
    print(f"# from the environment (RAGTREE_...), {source or 'no ragtree.yaml'}, and defaults")
    print("\n".join(_commented(load_config(), indent="")))


@app.command()
def render() -> None:
    """Print a Ray Serve config file of the stack, for `serve run` and for a RayService on Kubernetes."""
    from services.serving import render as rendered

    print(rendered(load_config()), end="")


def _commented(model: BaseModel, indent: str) -> Iterator[str]:
    plain = model.model_dump(mode="json")
    for name, field in type(model).model_fields.items():
        if field.description:
            yield f"{indent}# {field.description}"
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield f"{indent}{name}:"
            yield from _commented(value, indent + "  ")
        else:
            # JSON is YAML, and puts any value on one line.
            yield f"{indent}{name}: {json.dumps(plain[name], ensure_ascii=False)}"
