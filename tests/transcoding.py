"""`transcode` with an encoder that waits, fails or is counted, as the environment says.

`BEGUN`: a file that gets a line for each chunk in each rendition whose encoding begins. `GATES`: a
folder; a chunk is encoded once it holds a file named like the chunk's first segment. `BROKEN`: the
height of the rendition that cannot be encoded.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from intermission.errors import MediaError
from intermission.media import encode_client
from intermission.media.video_info import Section
from intermission.pipelines.transcode import shared_encode
from intermission.pipelines.transcode import transcode as transcode

REF = f"{Path(__file__)}:transcode"
_encode = encode_client.encode_video


def _troubled(path: Any, video: Any, section: Section, *rest: Any, **named: Any) -> Any:
    if "BEGUN" in os.environ:
        with Path(os.environ["BEGUN"]).open("a") as file:
            for rendition in section.renditions:
                file.write(f"{section.first_segment} {rendition.height}\n")
    gate = os.environ.get("GATES") and Path(os.environ["GATES"], str(section.first_segment))
    while gate and not gate.exists():
        time.sleep(0.02)
    broken = os.environ.get("BROKEN")
    if broken and int(broken) in [rendition.height for rendition in section.renditions]:
        raise MediaError(f"an encoder for {broken} lines cannot be opened.")
    return _encode(path, video, section, *rest, **named)


setattr(shared_encode, "encode_video", _troubled)  # noqa: B010
