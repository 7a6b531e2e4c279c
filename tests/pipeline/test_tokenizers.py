"""Tokenizers: their tokens, the bytes that these represent, and text.json."""

import json
import pickle
import string

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep import examples
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from pipeline.errors import OptionError
from pipeline.shards.typed_json import sealed_line
from pipeline.tokenizers import (
    ASCII_ALPHABET,
    ByteTokenizer,
    CharacterTokenizer,
    HuggingFaceTokenizer,
    TextInfo,
    open_hugging_face,
    read_text_info,
)

CORPUS = ["In the beginning was the word.", "Käse, 日本語 und 🎉🎉", "the the the theme"] * 9


def byte_level(**options):
    """Like GPT-2's."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(**options), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|endoftext|>"]
    made.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=320, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        ),
    )
    return made


def word_piece():
    """Like BERT's, which forgets case and accents and marks continued words."""
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = (
        normalizers.BertNormalizer(),
        pre_tokenizers.BertPreTokenizer(),
    )
    made.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    made.train_from_iterator(
        CORPUS,
        trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False),
    )
    return made


MADE = {
    "byte level": byte_level(add_prefix_space=False),
    "with a prefix": byte_level(),
    "word piece": word_piece(),
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizers")
    for name, made in MADE.items():
        made.save(str(directory / f"{name}.json"))
    return directory


def opened(directory):
    named = {name: open_hugging_face(str(directory / f"{name}.json")) for name in MADE}
    return {"bytes": ByteTokenizer(), "characters": CharacterTokenizer("Käse th"), **named}


@given(st.lists(st.one_of(st.sampled_from(CORPUS), st.text(max_size=30)), max_size=4))
@settings(max_examples=examples(100), deadline=None)
def test_the_bytes_of_the_tokens_add_up_to_the_text(directory, texts):
    for name, tokenizer in opened(directory).items():
        tokens = tokenizer.encode_batch(texts)
        for text, alone, (same, ends) in zip(
            texts, tokens, tokenizer.encode_with_ends(texts), strict=True
        ):
            assert alone.tolist() == same.tolist(), name
            assert len(ends) == len(alone)
            assert (np.diff(ends, prepend=0) >= 0).all()
            assert not len(ends) or ends[-1] == len(text.encode())
            assert not len(alone) or 0 <= alone.min() <= alone.max() < tokenizer.vocabulary_size


@given(st.text(max_size=30))
@settings(max_examples=examples(100), deadline=None)
def test_text_that_a_tokenizer_can_represent_comes_back(directory, text):
    named = opened(directory)
    for tokenizer in (named["bytes"], named["byte level"]):
        (tokens,) = tokenizer.encode_batch([text])
        assert tokenizer.decode([tokenizer.start, *tokens, tokenizer.end]) == text
    if "\ufffd" not in text:
        assert named["characters"].decode(named["characters"].encode_batch([text])[0]) == "".join(
            character if character in "Käse th" else "\ufffd" for character in text
        )


@given(st.sampled_from(CORPUS))
@settings(max_examples=5, deadline=None)
def test_tokens_of_bytes_and_offsets_agree(directory, text):
    tokenizer = opened(directory)["byte level"]
    ((_, ends),), ((_, by_offsets),) = (
        tokenizer.encode_with_ends([text]),
        tokenizer._with_offsets([text]),
    )
    characters = np.cumsum([len(character.encode()) for character in text])
    assert by_offsets.tolist() == [
        int(characters[np.searchsorted(characters, end)]) for end in ends
    ]


def test_the_default_alphabet_is_printable_ascii_with_tab_and_newline():
    assert set(ASCII_ALPHABET) == set(string.printable) - set("\r\v\f")


def test_the_bytes_of_characters_are_those_of_utf_8():
    (_, ends), *_ = CharacterTokenizer("a").encode_with_ends(["aé日🎉"])
    assert ends.tolist() == [1, 3, 6, 10]


def test_a_tokenizer_with_dropout_is_refused(directory):
    made = json.loads((directory / "byte level.json").read_text())
    made["model"]["dropout"] = 0.3
    (directory / "dropout.json").write_text(json.dumps(made))
    with pytest.raises(
        OptionError, match=r"dropout\.json has a dropout of 0\.3: .* Set it to null in the file\."
    ):
        open_hugging_face(str(directory / "dropout.json"))


def test_a_text_that_a_broken_tokenizer_cannot_encode_is_an_error(directory):
    Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1}, "[UNK]")).save(str(directory / "broken.json"))
    broken = open_hugging_face(str(directory / "broken.json"))
    with pytest.raises(
        OptionError, match=r"broken\.json cannot encode a text: .*UNK.*\. Repair the tokenizer"
    ):
        broken.encode_batch(["words"])


def test_the_unknown_token_is_taken_from_the_model(directory):
    named = opened(directory)
    assert (named["word piece"].unknown, named["byte level"].unknown) == (1, None)


def test_special_tokens_in_the_text_are_text(directory):
    tokenizer = opened(directory)["byte level"]
    (tokens,) = tokenizer.encode_batch(["a<|endoftext|>b"])
    assert tokenizer.end not in tokens
    assert tokenizer.decode(tokens) == "a<|endoftext|>b"


def test_a_word_tokenizer_has_the_usual_roles_and_a_file_names_its_own(directory):
    found = opened(directory)
    assert (found["word piece"].start, found["word piece"].end) == (2, 3)
    assert (found["byte level"].start, found["byte level"].end) == (0, 0)
    given = open_hugging_face(str(directory / "word piece.json"), start="[SEP]", end="[PAD]")
    assert (given.start, given.end) == (3, 0)


def test_a_tokenizer_without_start_and_end_tokens_is_refused_with_the_remedy(directory):
    path = str(directory / "bare.json")
    bare = Tokenizer(models.WordLevel({"a": 0, "[END]": 1}, "a"))
    bare.add_tokens([AddedToken("[START]")])
    bare.save(path)
    with pytest.raises(
        OptionError, match=r"bare\.json has none of the tokens .*<s>.* Give one of its own as"
    ):
        open_hugging_face(path)
    with pytest.raises(
        OptionError, match=r"--end-token=\[ENDE\]: .* has no such token\. Did you mean '\[END\]'\?"
    ):
        open_hugging_face(path, start="[START]", end="[ENDE]")


def test_a_panic_of_the_library_is_an_error_and_prints_nothing(directory, capfd):
    made = json.loads((directory / "byte level.json").read_text())
    made["model"]["continuing_subword_prefix"] = "None"  # longer than the tokens it is taken off
    (directory / "panic.json").write_text(json.dumps(made))
    with pytest.raises(
        OptionError,
        match=r"panic\.json is not a tokenizer\.json .*: range end index .* out of range",
    ):
        open_hugging_face(str(directory / "panic.json"))
    assert capfd.readouterr().err == ""


def test_a_file_that_is_no_tokenizer_is_an_error(directory):
    (directory / "none.json").write_text("{}")
    with pytest.raises(
        OptionError, match=r"none\.json is not a tokenizer\.json of Hugging Face's tokenizers: "
    ):
        open_hugging_face(str(directory / "none.json"))


def test_a_tokenizer_is_equal_after_pickling_and_after_writing_it_to_a_dataset(directory, tmp_path):
    for tokenizer in opened(directory).values():
        info = TextInfo(pickle.loads(pickle.dumps(tokenizer)), 128, "concat")
        for name, content in info.files().items():
            (tmp_path / name).write_bytes(content)
        read = read_text_info(str(tmp_path))
        assert (read.sequence_length, read.packing) == (128, "concat")
        assert read.tokenizer.settings() == tokenizer.settings()
        assert [t.tolist() for t in read.tokenizer.encode_batch(CORPUS)] == [
            t.tolist() for t in tokenizer.encode_batch(CORPUS)
        ]


def test_a_changed_file_is_an_error(directory, tmp_path):
    tokenizer = opened(directory)["word piece"]
    for name, content in TextInfo(tokenizer, 8, "documents").files().items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "tokenizer.json").write_bytes((directory / "byte level.json").read_bytes())
    with pytest.raises(
        OptionError,
        match=r"tokenizer\.json has changed: its digest is \w+; expected \w+\. Restore it",
    ):
        read_text_info(str(tmp_path)).tokenizer.encode_batch(["a"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"tokenizer": {"name": "words"}, "sequence_length": 8, "packing": "concat"}', "expected one of bytes, char"),
        ('{"tokenizer": {"name": "hugging_face"}, "sequence_length": 8, "packing": "concat"}', "are incomplete"),
        ('{"tokenizer": {"name": "bytes"}, "sequence_length": 0, "packing": "concat"}', "sequence_length is 0"),
        ('{"tokenizer": {"name": "bytes"}, "checksum": "00000000"}', "its checksum is '00000000', but that of"),
    ],
)  # fmt: skip
def test_a_damaged_text_json_is_one_error(tmp_path, text, message):
    fields = json.loads(text)
    (tmp_path / "text.json").write_bytes(
        text.encode() if "checksum" in fields else sealed_line(fields)
    )
    with pytest.raises(
        OptionError, match=rf"text\.json: .*{message}.* Copy it again, or convert the texts again"
    ):
        read_text_info(str(tmp_path))


def test_a_directory_without_packed_text_is_an_error(tmp_path):
    with pytest.raises(
        OptionError, match=r"text\.json does not exist: .* has no packed text\. Give the output"
    ):
        read_text_info(str(tmp_path))


@pytest.mark.parametrize(
    ("alphabet", "message"),
    [("", "the alphabet is empty"), ("aba", "the alphabet lists 'a' 2 times. List each")],
)
def test_an_alphabet_has_each_character_once(alphabet, message):
    with pytest.raises(OptionError, match=message):
        CharacterTokenizer(alphabet)


def test_the_numbers_of_tokens_never_change():
    """Trained models depend on them."""
    assert ByteTokenizer().encode_batch(["aé"])[0].tolist() == [100, 198, 172]
    assert CharacterTokenizer().encode_batch(["\t\na~é"])[0].tolist() == [4, 5, 71, 100, 3]
    for tokenizer in (ByteTokenizer(), CharacterTokenizer()):
        assert (tokenizer.end, tokenizer.start) == (1, 2)


def test_a_hugging_face_tokenizer_equals_one_with_its_path_digest_and_tokens(directory):
    tokenizer = open_hugging_face(str(directory / "word piece.json"))
    assert tokenizer == HuggingFaceTokenizer(tokenizer.path, tokenizer.digest, 2, 3)
