"""A tiny question set: who is related to whom, told in documents that each say one thing."""

from pathlib import Path

from workload_files import write_lines

DOCUMENTS = {
    "albert": "Albert Grant is the father of Bertha Grant. Albert Grant lived in London.",
    "bertha": "Bertha Grant married Conrad Miller. The wedding was in Paris.",
    "conrad": "Conrad Miller founded the Acme Company. The Acme Company makes clocks.",
    "clocks": "The museum of clocks in Vienna shows many old clocks.",
    "rivers": "The Danube is a river in Europe. It flows through Vienna.",
}
QUESTIONS = [
    {"qid": "1", "question": "Who married the child of Albert Grant?", "answers": ["Conrad Miller"]},
    {"qid": "2", "question": "What did the husband of Bertha Grant found?", "answers": ["The Acme Company."]},
    {"qid": "3", "question": "Which river flows through Vienna?", "answers": ["danube"]},
]
GOLD = {"1": ["albert", "bertha"], "2": ["bertha", "conrad"], "3": ["rivers"]}


def documents(**fields: str) -> list[dict]:
    return [{"doc_id": name, "title": "", "text": text, **fields} for name, text in DOCUMENTS.items()]


def write_set(root: Path, name: str, docs: list[dict] | None, questions: list[dict] | None) -> None:
    if docs is not None:
        write_lines(root / name / "docs.jsonl.gz", docs)
    if questions is not None:
        write_lines(root / name / "questions.jsonl.gz", questions)


def write_family(root: Path) -> Path:
    """Write ``given``, which names its passages, ``told``, which does not, and sets that cannot be measured."""
    write_set(root, "given", documents(), [{**one, "gold_doc_ids": GOLD[one["qid"]]} for one in QUESTIONS])
    write_set(root, "told", documents(), [{**one, "ctx_doc_ids": list(DOCUMENTS)} for one in QUESTIONS])
    write_set(root, "asked", None, QUESTIONS)
    write_set(root, "stored", documents(), None)
    write_set(root, "unknown", documents(), QUESTIONS)
    return root
