"""A quality and its sound in one file, for those who have no use for segments."""

from __future__ import annotations

from collections.abc import Sequence

from intermission import Context
from intermission.errors import Permanent
from intermission.media.joining import beginning, fragment, in_order
from intermission.pipelines.transcode.playlists import Rendition
from intermission.pipelines.transcode.renditions import Segments, sound_of
from intermission.pipelines.transcode.shapes import Encoded, Sound


def named(asked: str, whole: Sequence[Rendition]) -> list[Rendition]:
    """The qualities that a person named. Raises `Permanent` for one that is not there."""
    known = {one.name: one for one in whole}
    names = [name.strip() for name in asked.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise Permanent(
                f"there is no {name} to make one file of.",
                remedy=f"There is {', '.join(known) or 'nothing'}: say it with --mp4.",
            )
    return [known[name] for name in names]


def write_single(
    ctx: Context, track: Rendition, encoded: Sequence[Encoded | None], sound: Sound | None
) -> None:
    """`720p.mp4`: the pictures of a quality with the first track of sound."""
    pictures = Segments(track.name, encoded)
    heard = None if sound is None else sound_of(sound)
    parts = [] if heard is None else heard.parts
    with ctx.out(f"{track.name}.mp4").open("wb") as file:
        first = None
        if sound is not None and heard is not None:
            first = sound.files[f"{heard.name}/init.mp4"].read_bytes()
        file.write(beginning(pictures["init.mp4"].read_bytes(), first))
        order = in_order(
            (part.start / track.scale for part in track.parts),
            (part.start / heard.scale for part in parts) if heard is not None else (),
        )
        for number, (is_sound, n) in enumerate(order, 1):
            if is_sound and sound is not None and heard is not None:
                path = sound.files[f"{heard.name}/{parts[n].name}"]
            else:
                path = pictures[track.parts[n].name]
            file.write(fragment(path.read_bytes(), number, is_second=is_sound))
            ctx.progress(number / len(order))
