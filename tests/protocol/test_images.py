"""Images inside result texts."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given, strategies as st

from umbel.protocol.images import (
    MEDIA_TYPES,
    PLACEHOLDER,
    Image,
    count_images,
    image_segment,
    split_images,
    strip_images,
    text_length,
    text_tokens,
    without_old_images,
)
from umbel.protocol.messages import Message, ToolResult

PNG = image_segment(b"\x89PNG", "image/png")
pieces = st.lists(
    st.text(alphabet='<umbel-ig type="p/>=QUJD', max_size=12)
    | st.builds(image_segment, st.binary(min_size=1, max_size=9), st.sampled_from(sorted(MEDIA_TYPES))),
    max_size=6,
)


@pytest.mark.spec("STATE-6")
@given(pieces)
def test_splitting_loses_nothing(parts: list[str]) -> None:
    text = "".join(parts)
    found = split_images(text)
    segment = '<umbel-image type="{0.media_type}">{0.base64}</umbel-image>'
    assert "".join(piece if isinstance(piece, str) else segment.format(piece) for piece in found) == text
    assert count_images(text) == sum(isinstance(piece, Image) for piece in found) >= sum(map(count_images, parts))
    plain = strip_images(text)
    assert len(plain) == text_length(text)
    assert plain == "".join(piece for piece in found if isinstance(piece, str))


@pytest.mark.spec("STATE-6")
def test_pieces_in_order() -> None:
    png = Image(media_type="image/png", base64=base64.b64encode(b"\x89PNG").decode())
    assert split_images(f"a{PNG}{PNG}b") == ("a", png, png, "b")
    assert split_images("") == ()
    assert strip_images(f"a{PNG}b", "[image]") == "a[image]b"


@pytest.mark.spec("STATE-6")
def test_length_and_tokens() -> None:
    text = "x" * 400 + PNG + PNG
    assert text_length(text) == 400
    assert text_tokens(text) == 100 + 2 * 1_600
    assert text_tokens("abc") == 0


@pytest.mark.spec("STATE-6")
@pytest.mark.parametrize(
    "text",
    [
        '<umbel-image type="image/png">QUJ</umbel-image>',  # three of four characters
        '<umbel-image type="image/png">Q=UI</umbel-image>',
        '<umbel-image type="image/png">no base64!</umbel-image>',
        '<umbel-image type="text/html">QUJD</umbel-image>',
        '<umbel-image type="image/png">QUJD',
        '<umbel-image type="image/png"></umbel-image>',
        "data:image/png;base64,QUJD",
    ],
)
def test_what_only_looks_like_an_image_stays_text(text: str) -> None:
    assert split_images(text) == (text,)
    assert text_length(text) == len(text)


def test_an_image_must_be_one_that_models_take() -> None:
    with pytest.raises(ValueError, match="image/tiff"):
        image_segment(b"x", "image/tiff")
    with pytest.raises(ValueError, match="one byte"):
        image_segment(b"", "image/png")


def test_many_openings_are_no_trap() -> None:
    assert count_images('<umbel-image type="image/png">' * 50_000) == 0
    assert count_images('<umbel-image type="image/png">' + "A" * 2_000_000) == 0


@pytest.mark.spec("STATE-6")
def test_only_the_last_results_keep_their_images() -> None:
    def result(number: int, text: str) -> Message:
        return Message.tool(ToolResult(tool_call_id=f"c{number}", name="look", content=text))

    history = [Message.user(PNG), *(result(n, f"{n}{PNG}{PNG}") for n in range(4)), result(9, "no image"), result(5, PNG)]
    shown = without_old_images(history)
    assert [message.content for message in shown] == [
        PNG,
        f"0{PLACEHOLDER}{PLACEHOLDER}",
        f"1{PLACEHOLDER}{PLACEHOLDER}",
        f"2{PNG}{PNG}",
        f"3{PNG}{PNG}",
        "no image",
        PNG,
    ]
    assert [message.tool_call_id for message in shown] == [message.tool_call_id for message in history]
    assert without_old_images(history, shown=0)[-1].content == PLACEHOLDER
