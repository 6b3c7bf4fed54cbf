"""The PPTX loader."""

from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import TYPE_CHECKING

from retriever.loaders.archive import check_office_package
from retriever.loaders.base import LoadedText, joined, parsing
from retriever.loaders.tables import table_blocks

if TYPE_CHECKING:
    from pptx.shapes.base import BaseShape
    from pptx.slide import Slide


def load_pptx(content: bytes) -> LoadedText:
    """Return the slides with their notes. The heading of each is its title, or its number.

    The title is that of the first slide, otherwise the property.
    """
    import pptx

    check_office_package(content, "PPTX")
    with parsing("PPTX"):
        presentation = pptx.Presentation(BytesIO(content))
        slides = list(presentation.slides)
        text = joined(block for number, slide in enumerate(slides, 1) for block in _blocks(slide, number))
        title = _title(slides[0]) if slides else ""
        return LoadedText(title or presentation.core_properties.title or None, text)


def _title(slide: "Slide") -> str:
    shape = slide.shapes.title
    return " ".join(shape.text_frame.text.split()) if shape is not None else ""


def _blocks(slide: "Slide", number: int) -> Iterator[str]:
    blocks = [*_shape_blocks(shape for shape in slide.shapes if shape != slide.shapes.title), *_notes(slide)]
    title = _title(slide)
    # A heading alone, as on a slide with a picture, is no text unless it says something.
    if title or any(blocks):
        yield f"# {title or f'Slide {number}'}"
    yield from blocks


def _shape_blocks(shapes: "Iterable[BaseShape]") -> Iterator[str]:
    from pptx.shapes.autoshape import Shape
    from pptx.shapes.graphfrm import GraphicFrame
    from pptx.shapes.group import GroupShape

    for shape in shapes:
        if isinstance(shape, GroupShape):
            yield from _shape_blocks(shape.shapes)
        elif isinstance(shape, GraphicFrame):
            if shape.has_table:
                yield from table_blocks([cell.text for cell in row.cells] for row in shape.table.rows)
        elif isinstance(shape, Shape):
            yield "\n".join(filter(None, (paragraph.text.strip() for paragraph in shape.text_frame.paragraphs)))


def _notes(slide: "Slide") -> Iterator[str]:
    frame = slide.notes_slide.notes_text_frame if slide.has_notes_slide else None
    if frame is not None and frame.text.strip():
        yield f"Notes: {frame.text.strip()}"
