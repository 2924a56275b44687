"""The command line. Each command imports what it needs when it is called, so that --help is instant."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from . import __version__
from .errors import MissingExtra

if TYPE_CHECKING:
    from .elastic import ElasticModel
    from .model import Budget, ModelConfig

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Elastic spectral state space models: train once, ship at every compute budget.",
)
console = Console()
BUDGETS = typer.Option(help="A number of channels, or one a layer (3,3,4,8). May be repeated.")


def main() -> None:
    """Run a command. What the user can mend is one sentence on stderr, never a traceback."""
    try:
        app()
    except (ValueError, OSError, MissingExtra) as problem:
        Console(stderr=True).print(
            f"es-ssm: {problem}", style="red", markup=False, highlight=False, soft_wrap=True
        )
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def _version(wanted: bool) -> None:
    if wanted:
        console.print(f"es-ssm {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="And exit.")
    ] = False,
) -> None:
    pass


@app.command()
def recipes() -> None:
    """List the models that have a name."""
    from .ledger import total
    from .recipes import RECIPES

    table = Table("recipe", "what it is", *_numbers("d", "layers", "K", "L", "parameters"), box=None)
    for name, found in RECIPES.items():
        config = found.config
        count = total(config, found.kind).parameters
        sizes = map(str, (config.d_model, config.n_layers, config.n_filters, config.max_length))
        table.add_row(name, found.about, *sizes, f"{count / 1e6:.2f} M")
    console.print(table)


@app.command()
def ledger(
    model: Annotated[
        str, typer.Argument(metavar="RECIPE|CHECKPOINT", help="A recipe's name, or a model's folder.")
    ],
    budget: Annotated[list[str] | None, BUDGETS] = None,
) -> None:
    """Show parameters and multiply-accumulates, by part, by layer and by budget."""
    from .export import parse_budget
    from .ledger import head_entries, layer_entries, layer_total, total

    config, kind = _described(model)
    budgets = [parse_budget(text) for text in budget] if budget else config.all_budgets
    layers = {each: config.layer_budgets(each) for each in budgets}
    full = max(config.layer_filters)
    columns = _numbers("parameters", "MAC/token")
    parts = Table("one layer", *columns, "with K", title=f"{model}: one layer at K={full}", box=None)
    for entry in layer_entries(config, full):
        scales = "yes" if entry.scales else ""
        parts.add_row(entry.part, f"{entry.parameters:,}", f"{entry.macs:,.0f}", scales)
    parts.add_section()
    for entry in head_entries(config, kind):
        parts.add_row(entry.part, f"{entry.parameters:,}", f"{entry.macs:,.0f}", "")
    console.print(parts)

    whole = total(config, kind)
    columns = _numbers("a layer", "MMAC/token", "the model", "of all", "MMAC/token", "of all")
    sums = Table("budget", *columns, title=f"parameters and MMAC/token, {config.n_layers} layers", box=None)
    for each, numbers in layers.items():
        one = layer_total(config, numbers[0])
        found = total(config, kind, each)
        same = len(set(numbers)) == 1
        sums.add_row(
            _text(each),
            f"{one.parameters / 1e6:.3f} M" if same else "",
            f"{one.macs / 1e6:,.3f}" if same else "",
            f"{found.parameters / 1e6:.2f} M",
            f"{found.parameters / whole.parameters:.0%}",
            f"{found.macs / 1e6:,.2f}",
            f"{found.macs / whole.macs:.0%}",
        )
    console.print(sums)

    for each, numbers in layers.items():
        if len(set(numbers)) == 1:
            continue
        single = Table(
            *_numbers("layer", "K", "parameters", "MAC/token"), title=f"budget {_text(each)}", box=None
        )
        for index, number in enumerate(numbers):
            one = layer_total(config, number)
            single.add_row(str(index), str(number), f"{one.parameters:,}", f"{one.macs:,.0f}")
        console.print(single)


@app.command()
def export(
    checkpoint: Annotated[Path, typer.Argument(help="The folder of a saved model.")],
    out: Annotated[Path, typer.Option(help="Where the exports go, a folder each.")],
    budget: Annotated[list[str] | None, BUDGETS] = None,
    all_budgets: Annotated[bool, typer.Option("--all", help="Every budget of the model.")] = False,
) -> None:
    """Cut a saved model to one or more budgets: smaller, standalone models."""
    from .checkpoint import load
    from .export import export as write
    from .export import parse_budget

    if bool(budget) == all_budgets:
        raise ValueError("say which budgets to export: --budget 8 (as often as you like), or --all")
    model = load(checkpoint)
    wanted = list(model.budgets) if all_budgets else [parse_budget(text) for text in budget or ()]
    for path in write(model, out, wanted):
        size = sum(file.stat().st_size for file in path.iterdir())
        console.print(f"{path}  {size / 1e6:.2f} MB", highlight=False, soft_wrap=True)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where to put the pictures and the exports.")] = Path("out/demo"),
) -> None:
    """Show the filters, an elastic model with random weights, and its exports at every budget."""
    from .demo import run

    run(out, console)


def _numbers(*headers: str) -> list[Column]:
    return [Column(header, justify="right") for header in headers]


def _text(budget: "Budget") -> str:
    """8, or 3,3,4,8: as it is typed."""
    return str(budget) if isinstance(budget, int) else ",".join(map(str, budget))


def _described(name: str) -> "tuple[ModelConfig, type[ElasticModel]]":
    """The configuration of a recipe, or of a saved model."""
    from .checkpoint import read_header
    from .heads import MODELS
    from .recipes import RECIPES, recipe

    if name not in RECIPES and Path(name).exists():
        header, config = read_header(Path(name))
        return config, MODELS[header.model]
    found = recipe(name)
    return found.config, found.kind
