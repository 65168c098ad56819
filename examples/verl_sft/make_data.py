"""Makes a model and data to train on in a minute, without a download.

    python make_data.py DIRECTORY

DIRECTORY/model: a Qwen2 with random weights (about 80,000 parameters) and a tokenizer that knows one
token for each word. DIRECTORY/train.parquet and val.parquet: sums of two numbers below 20, as
conversations in a column `messages`.
"""

import pathlib
import random
import sys

import pandas
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

NUMBERS = range(20)
SPECIAL = ["<unk>", "<pad>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|> ' + message['role'] + ' ' + message['content'] + ' <|im_end|> ' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|> assistant ' }}{% endif %}"
)


def conversation(left, right):
    return [
        {"role": "user", "content": f"{left} plus {right} is"},
        {"role": "assistant", "content": str(left + right)},
    ]


def main(directory):
    torch.manual_seed(0)
    numbers = [str(number) for number in range(2 * len(NUMBERS) - 1)]
    words = [*SPECIAL, "user", "assistant", "system", "plus", "is", *numbers]
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        pad_token="<pad>",
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(directory / "model")
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=False,
    )
    Qwen2ForCausalLM(config).save_pretrained(directory / "model")
    rows = [{"messages": conversation(left, right)} for left in NUMBERS for right in NUMBERS]
    random.Random(0).shuffle(rows)
    pandas.DataFrame(rows[:360]).to_parquet(directory / "train.parquet")
    pandas.DataFrame(rows[360:]).to_parquet(directory / "val.parquet")


if len(sys.argv) != 2:
    sys.exit(__doc__)
main(pathlib.Path(sys.argv[1]))
