"""infeed export-weights WORKDIR --output FILE.safetensors: writes a model's weights for other
libraries.

WORKDIR and FILE may be on a disk or in a bucket. --names gives the arrays the names and layouts of
timm, transformers or torchvision, which then load the file. The metadata of the file say which
classes the model has, and which metrics were proven on which data. Needs neither JAX nor a device.
In Python: export_weights of trainer.checkpoints."""

if __name__ == "__main__":
    from pipeline.console.interrupts import ctrl_c_exits

    ctrl_c_exits()  # before the imports: they take seconds

from collections.abc import Sequence
from typing import get_args

from pipeline.console.console import Console, say
from pipeline.console.parser import Parser, exit_with
from trainer.checkpointing.listing import which_step
from trainer.checkpointing.mappings import Names
from trainer.checkpoints import export_weights
from trainer.config import Model

EXAMPLES = (
    "model --output=model.safetensors",
    "model --output=best.safetensors --step=best",
)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command. Raises InfeedError."""
    parser = Parser(
        "trainer.commands.export_weights", __doc__, EXAMPLES, ("trainer", "trainer.checkpoints")
    )
    parser.add_argument(
        "workdir",
        metavar="WORKDIR",
        help="the work directory of a run, local or in a bucket (gs:// or s3://)",
    )
    parser.add_argument("--output", metavar="FILE", required=True, help="a new file")
    parser.add_argument(
        "--names",
        choices=get_args(Names),
        default="own",
        help="whose names and layouts the arrays get (default: infeed's own)",
    )
    parser.add_argument("--step", help="which checkpoint: a number, or best (default: the newest)")
    parser.add_argument(
        "--model",
        choices=get_args(Model),
        help="parameters as trained, or averaged (default: those that evaluations use)",
    )
    args = parser.parse_args(argv)
    step = export_weights(
        args.workdir,
        args.output,
        names=args.names,
        step=which_step(args.step),
        model=args.model,
    )
    say(Console(), f"weights of step {step:,} written to {args.output}")


if __name__ == "__main__":
    exit_with(main)
