"""A typical CTranslate2 script that translates one text: FOLDER TEXT. Run as a script."""

import sys


def main() -> None:
    """Translate the second argument with the model of the first."""
    import ctranslate2
    from tokenizers import Tokenizer

    folder, text = sys.argv[1:]
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    translator = ctranslate2.Translator(folder, compute_type="int8", intra_threads=1)
    pieces = tokenizer.encode(text, add_special_tokens=False).tokens
    (result,) = translator.translate_batch([pieces], beam_size=1)
    ids = [tokenizer.token_to_id(piece) or 0 for piece in result.hypotheses[0]]
    print(tokenizer.decode(ids).strip())


if __name__ == "__main__":
    main()
