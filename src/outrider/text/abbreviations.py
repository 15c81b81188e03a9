"""Words whose dot is their own, in the languages that write with dots; all in small letters.

Short lists on purpose: single letters, letters with dots between them, Roman numerals and ordinals
are known by their form, and what is a common word elsewhere does more harm than good.
"""

__all__ = ["BEFORE_A_NAME", "BEFORE_A_NUMBER", "FIRST_WORDS", "INSIDE", "MAYBE_LAST", "NAME_PARTS"]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


BEFORE_A_NAME = _words(
    """
    mr mrs ms mx dr drs prof sen sens rep reps gov gen col maj capt cmdr lt sgt cpl pvt rev hon pres
    supt messrs adm amb insp brig pfc fr
    hr frl ing dipl mag phil med jur bürgerm
    m mm mme mmes mlle mgr pr ste
    sra srta dra dña dn lic sres sras exmo exma
    mudr
    """
)
"""Titles: never the last word of a sentence, if written with a capital as titles are."""

INSIDE = _words(
    """
    vs cf viz approx e.g i.e
    bzw evtl ggf inkl incl exkl vgl sog geb gest hl bspw insb zzgl z.b z.t d.h v.a
    p.ej p.ex c.-à-d aprox ee
    sig dott avv geom dhr mevr bijv d.w.z
    ul ks św np tzn tzw m.in např tzv
    проф акад им ул напр см т.е т.к г-н г-жа д-р
    """
)
"""Never the last word of a sentence, however written."""

BEFORE_A_NUMBER = _words(
    """
    no nos nr fig figs vol vols pp pg ch chap sec sect art eq eqs tab tabs ca max min op ed
    abb abs kap bd aufl anm bl blz
    núm pág págs cap n tel ok
    рис стр табл гл ст
    jan feb mar apr jun jul aug sept sep oct nov dec mrz okt dez janv févr avr juil déc
    ene abr ago dic
    """
)
"""Not the last word of a sentence if a number follows."""

MAYBE_LAST = _words(
    """
    etc inc corp ltd co bros plc llc jr sr esq st mt ave blvd rd dept univ assn est al hrs ft lb oz
    usw gmbh chr jh tsd mio mrd std str tel bf hrsg verf
    cie av apr
    ud uds vd vds uu cía avda
    ecc enz osv itd itp atd vb
    гг тыс млн млрд руб др пр коп тт вв
    """
)
"""The last word of a sentence only where the next one is sure to begin one."""

FIRST_WORDS = _words(
    """
    the a an he she it we you they i this that these those there here in on at for but and so if
    when while after before as his her its our their my your what who why how where not no yes one
    some many most all however then now also since although because
    der die das ein eine er sie es wir ihr ich im am auf aber und doch wenn als da dann dies diese
    dieser dieses man mein meine sein seine für mit nach was wer wie wo nicht auch bei zu zum zur
    le la les un une il elle ils elles nous vous je tu ce cet cette ces mais et ou donc si quand
    dans en à au aux pour par sur avec son sa ses leur leurs mon ma mes
    el los las una él ella ellos ellas nosotros yo tú pero y cuando que como su sus mi este esta es
    lo gli lui lei noi ma e se quando questo questa non nel
    o os as um uma ele ela eles nós mas quando em não
    de het een hij zij ze wij ik maar als toen dit dat deze
    он она оно они мы вы я ты это в на но и а если когда как по с у для его её их так что не
    """
)
"""Words that begin a sentence far more often than they follow an abbreviation with a capital."""

NAME_PARTS = _words("le la les los las el das des de der den an so no on al")
"""Of these, the ones that names begin with: `J. Le Clézio`."""
