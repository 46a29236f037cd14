"""Language tags as players expect them (BCP 47). Pure: text goes in, a tag or nothing comes out.

Media files name languages with three letters, in two ways for some (ISO 639-2: `ger` and `deu`).
BCP 47 asks for the shortest code, `de`. The table is the whole of ISO 639-1, which is closed.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

_TAG = re.compile(
    r"([a-z]{2,3})(-[a-z]{4})?(-(?:[a-z]{2}|[0-9]{3}))?((?:-(?:[a-z0-9]{5,8}|[0-9][a-z0-9]{3}))*)",
    re.IGNORECASE | re.ASCII,
)
"""Language, script, region and variants."""
_UNKNOWN = "und"
_ISO_639 = """
    aa/aar ab/abk ae/ave af/afr ak/aka am/amh an/arg ar/ara as/asm av/ava ay/aym az/aze ba/bak
    be/bel bg/bul bi/bis bm/bam bn/ben bo/bod/tib br/bre bs/bos ca/cat ce/che ch/cha co/cos
    cr/cre cs/ces/cze cu/chu cv/chv cy/cym/wel da/dan de/deu/ger dv/div dz/dzo ee/ewe el/ell/gre
    en/eng eo/epo es/spa et/est eu/eus/baq fa/fas/per ff/ful fi/fin fj/fij fo/fao fr/fra/fre
    fy/fry ga/gle gd/gla gl/glg gn/grn gu/guj gv/glv ha/hau he/heb/iw hi/hin ho/hmo hr/hrv
    ht/hat hu/hun hy/hye/arm hz/her ia/ina id/ind/in ie/ile ig/ibo ii/iii ik/ipk io/ido
    is/isl/ice it/ita iu/iku ja/jpn jv/jav ka/kat/geo kg/kon ki/kik kj/kua kk/kaz kl/kal km/khm
    kn/kan ko/kor kr/kau ks/kas ku/kur kv/kom kw/cor ky/kir la/lat lb/ltz lg/lug li/lim ln/lin
    lo/lao lt/lit lu/lub lv/lav mg/mlg mh/mah mi/mri/mao mk/mkd/mac ml/mal mn/mon mr/mar
    ms/msa/may mt/mlt my/mya/bur na/nau nb/nob nd/nde ne/nep ng/ndo nl/nld/dut nn/nno no/nor
    nr/nbl nv/nav ny/nya oc/oci oj/oji om/orm or/ori os/oss pa/pan pi/pli pl/pol ps/pus pt/por
    qu/que rm/roh rn/run ro/ron/rum ru/rus rw/kin sa/san sc/srd sd/snd se/sme sg/sag sh/hbs
    si/sin sk/slk/slo sl/slv sm/smo sn/sna so/som sq/sqi/alb sr/srp ss/ssw st/sot su/sun sv/swe
    sw/swa ta/tam te/tel tg/tgk th/tha ti/tir tk/tuk tl/tgl tn/tsn to/ton tr/tur ts/tso tt/tat
    tw/twi ty/tah ug/uig uk/ukr ur/urd uz/uzb ve/ven vi/vie vo/vol wa/wln wo/wol xh/xho
    yi/yid/ji yo/yor za/zha zh/zho/chi zu/zul
"""
"""Each language's two letters, then its other codes."""
_SHORTEST = {code: row[:2] for row in _ISO_639.split() for code in row.split("/")}


def tag_of(text: str | None) -> str:
    """The tag of a language, however it was named; empty for what is no language.

    Whoever made a media file wrote the text, so nothing but a tag may pass.
    """
    found = _TAG.fullmatch(text or "")
    if found is None:
        return ""
    language, script, region, variants = (part or "" for part in found.groups())
    language = _SHORTEST.get(language.lower(), language.lower())
    if language == _UNKNOWN or (len(language) == 2 and language not in _SHORTEST):
        return ""
    return language + script.title() + region.upper() + variants.lower()


def _checked(text: str) -> str:
    tag = tag_of(text)
    if text and not tag:
        raise ValueError(f"{text!r} is not a language: write a tag such as de or pt-BR")
    return tag


LanguageTag = Annotated[
    str,
    AfterValidator(_checked),
    Field(description="language of the subtitles, such as de; detected by default"),
]
