"""The demo models' tokenizer: byte-level BPE over a small vocabulary, digits split one by one.

Nothing is normalised and nothing added, so decoding gives back any text. The marks that stand
between the parts of a problem (` + `, `; `) take their space with them, so that a digit or a
letter is the same token wherever it stands. What asks for a value (`a=`, ` Ann follows`) is one
token, right before the value: without that, look-ups were not learned in the time there was.
"""

from string import ascii_lowercase

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from .tasks import GAINS, LOSSES, NAMES, TASKS, THINGS

END = "<|endoftext|>"
VOCABULARY = 1024
PATTERN = r"[a-z]=| ?\p{L}+ follows| [-+=] |; | ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
ENGLISH = """
the of and to in is that it was for on are as with his they at be this have from or one had by
word but not what all were we when your can said there use an each which she do how their if
will up other about out many then them these so some her would make like him into time has look
two more write go see number no way could people my than first water been call who oil its now
find long down day did get come made may part over new sound take only little work know place
year live me back give most very after thing our just name good sentence man think say great
where help through much before line right too mean old any same tell boy follow came want show
The A In It He She We You They What When Who This That There Question Answer Problem spouse
performer capital city country born author language world house school family music song
"""


def corpus() -> str:
    """Every word of the problems and common English words: each becomes one token."""
    starts = ["Given", "Say", *NAMES]
    words = ["has", "That", "leaves", "one"] + NAMES + THINGS + GAINS + LOSSES
    asks = "\n" + "".join(f"{letter}=0; " for letter in ascii_lowercase)
    asks += "".join(f" {name} follows" for name in ["who", *NAMES])
    headings = [task.heading(worked) for task in TASKS.values() for worked in (False, True)]
    spaced = "".join(f" {word}" for word in [*words, *ascii_lowercase, *ENGLISH.split()])
    return "".join(headings) + "\n".join(starts) + asks + spaced + " + 0 - 0 = 0"


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Learn the merges; the same on every call."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([corpus()], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )
