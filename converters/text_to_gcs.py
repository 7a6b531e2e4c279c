"""python -m converters.text_to_gcs: text files, or a column of csv, tsv or jsonl -> rows of tokens
in TFRecord shards.

Packs documents into rows of --sequence-length tokens for language models. Runs on Apache Beam. The
same command resumes an interrupted conversion."""

if __name__ == "__main__":
    from pipeline.console.interrupts import ctrl_c_exits

    ctrl_c_exits()  # before the imports: they take seconds

import argparse
from collections.abc import Sequence
from typing import get_args

from beam_jobs.launch import exit_with
from beam_jobs.split.summary import check_places
from converters.command_line import chosen_splits, conversion_parser, parsed, run
from converters.raw.class_names import read_label_text
from converters.raw.files import left_out
from converters.raw.splits import SPLITS, held_out_of
from converters.table.layouts import add_csv_options, check_columns, table_format
from converters.text.converter import TextConverter
from converters.text.documents import SUFFIXES, DocumentFormat, find_texts
from pipeline.checks import check_number, did_you_mean
from pipeline.errors import OptionError
from pipeline.sizes import parse_bytes
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import COMPRESSED
from pipeline.tokenizers import (
    ByteTokenizer,
    CharacterTokenizer,
    Packing,
    TextInfo,
    Tokenizer,
    open_hugging_face,
)

EXAMPLES = (
    "--raw-data-dir=books --output=shards --validation-fraction=0.05",
    (
        "--raw-data-dir=reviews --output=tokens --text-column=text --tokenizer=tokenizer.json "
        "--sequence-length=2048"
    ),
)
_LONGEST_ROW = 1 << 20
_WHY_NOT = (
    f"Only {', '.join(SUFFIXES)} files of the splits are read, also with {', '.join(COMPRESSED)}."
)
_BUILT_IN = ("bytes", "characters")


def main(argv: Sequence[str] | None = None) -> int:
    """Converts, or reports a --dry-run. Returns the exit status. Raises InfeedError."""
    args = parsed(_parser(), argv)
    check_number("--sequence-length", args.sequence_length, at_least=2, at_most=_LONGEST_ROW)
    format = table_format(args.delimiter, quote=args.quote)
    splits = chosen_splits(args, SPLITS)
    check_places(args.raw_data_dir, args.output)
    reading = DocumentFormat(
        args.documents, args.text_column, format, parse_bytes(args.max_document_bytes)
    )
    held_out = held_out_of(args)
    texts = find_texts(args.raw_data_dir, splits, held_out, reading)
    check_columns(texts.tables, {"--text-column": [args.text_column]})
    info = TextInfo(_tokenizer(args), args.sequence_length, args.packing, held_out and held_out[:2])
    converter = TextConverter(info, reading)
    return run(args, converter, texts.sources, notices=left_out(texts.others, _WHY_NOT))


def _tokenizer(args: argparse.Namespace) -> Tokenizer:
    for option, token in (("start", args.start_token), ("end", args.end_token)):
        if token is not None and args.tokenizer in _BUILT_IN:
            raise OptionError(
                f"--{option}-token={token}: only a tokenizer.json has one. Leave it out."
            )
    if args.alphabet is not None and args.tokenizer != "characters":
        raise OptionError(
            f"--alphabet={args.alphabet}: only --tokenizer=characters has one. Leave it out."
        )
    if args.tokenizer == "bytes":
        return ByteTokenizer()
    if args.tokenizer == "characters":
        if args.alphabet is None:
            return CharacterTokenizer()
        return CharacterTokenizer("".join(dict.fromkeys(read_label_text(args.alphabet))))
    if not open_storage(args.tokenizer).exists(args.tokenizer):
        raise OptionError(
            f"--tokenizer={args.tokenizer}: neither bytes nor characters, nor an existing "
            f"tokenizer.json.{did_you_mean(args.tokenizer, _BUILT_IN)}"
        )
    return open_hugging_face(args.tokenizer, args.start_token, args.end_token)


def _parser() -> argparse.ArgumentParser:
    raw_data = "directory of .txt, .jsonl, .csv or .tsv files, plain, .gz, .bz2 or .zst"
    fraction = (
        "convert all files as one set: this fraction of the documents, chosen by a hash of their "
        "text"
    )
    parser = conversion_parser(
        "text_to_gcs", __doc__, EXAMPLES, SPLITS, raw_data, fraction=fraction
    )
    documents = parser.add_argument_group("documents")
    documents.add_argument(
        "--documents",
        choices=("file", "block"),
        default="file",
        help=(
            "what a document of a .txt file is: the file, or a block of lines between blank lines "
            "(default: file)"
        ),
    )
    documents.add_argument(
        "--text-column", default="text", help="column of tables with the documents (default: text)"
    )
    add_csv_options(documents)
    documents.add_argument(
        "--max-document-bytes",
        default="16MB",
        help=(
            "reject longer documents, because a document is packed in memory: about 150 times its "
            "size with a tokenizer.json. Rows of tables may never exceed 16 MiB (default: "
            "%(default)s)"
        ),
    )
    rows = parser.add_argument_group("rows of tokens")
    rows.add_argument(
        "--tokenizer",
        default="bytes",
        help=(
            "bytes, characters, or the path of a tokenizer.json of Hugging Face's tokenizers "
            "(default: bytes)"
        ),
    )
    rows.add_argument(
        "--alphabet",
        metavar="FILE",
        help=(
            "text whose characters --tokenizer=characters knows (default: printable ASCII, tab and "
            "newline)"
        ),
    )
    rows.add_argument(
        "--start-token",
        help="of the tokenizer.json, before each segment (default: <s>, [CLS], ...)",
    )
    rows.add_argument(
        "--end-token", help="of the tokenizer.json, after each document (default: </s>, [SEP], ...)"
    )
    rows.add_argument(
        "--sequence-length", type=int, default=512, help="tokens per row (default: %(default)s)"
    )
    rows.add_argument(
        "--packing",
        choices=get_args(Packing),
        default="documents",
        help=(
            "documents: cut only those that are longer than a row; concat: cut wherever a row "
            "ends, which leaves almost no padding (default: documents)"
        ),
    )
    return parser


if __name__ == "__main__":
    exit_with(main)
