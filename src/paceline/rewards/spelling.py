"""Spellings of one formula: what people and models write, rewritten into LaTeX that leaves nothing to guess.

`clean` maps characters, sizes, spaces and aliases to one spelling. `explicit` rewrites one expression so that a grammar has no choice
left: every product has its sign, every argument its braces, every decimal is an exact fraction. What has no single reading is refused as
`Unreadable`: two numbers side by side, a prime, an ellipsis, an unknown command. Linear in the text but for nesting, which is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

LONGEST = 2_000
"""Characters of an answer that is more than one number, at most."""
DEEPEST = 30
"""Nested brackets, at most."""


def _listed(words: str) -> tuple[str, ...]:
    return tuple(words.split())


FUNCTIONS = frozenset(_listed("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log exp"))
_ABROAD = {"lg": "log", "tg": "tan", "ctg": "cot", "arctg": "arctan"}
"""Names that functions have in Russian and Chinese problems."""
GREEK = frozenset(
    _listed(
        "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau upsilon phi varphi chi "
        "psi omega Gamma Delta Theta Lambda Xi Sigma Upsilon Phi Psi Omega ell"
    )
)
DECORATIONS = _listed("vec hat bar overline overrightarrow angle triangle")
"""Commands that make one name of the letters after them."""
APPLIED = frozenset("fghFGHPQ")
"""Letters that name a function when a bracket follows; any other letter is a factor."""

_CHARACTERS = {
    "\u2212": "-", "\u2013": "-", "\u00d7": r"\cdot ", "\u00b7": r"\cdot ", "\u22c5": r"\cdot ", "\u2217": r"\cdot ", "\u00f7": "/",
    "\u2215": "/", "\u2044": "/", "\u03c0": r"\pi ", "\u221e": r"\infty ", "\u00b0": r"^\circ ", "\u2264": r"\le ", "\u2265": r"\ge ",
    "\u2260": r"\ne ", "\u222a": r"\cup ", "\u2208": r"\in ", "\u2205": r"\emptyset ", "\u00b1": r"\pm ", "\u2248": r"\approx ",
    "\u211d": r"\mathbb{R}", "\u03b8": r"\theta ", "\u03b1": r"\alpha ", "\u03b2": r"\beta ", "\u03bb": r"\lambda ", "\u00a0": " ",
    "\u2009": " ", "\u202f": " ", "\u2032": "'", "\u2061": "", "\u27e8": r"\langle ", "\u27e9": r"\rangle ",
    "\u00bd": r"\frac{1}{2}", "\u00bc": r"\frac{1}{4}", "\u00be": r"\frac{3}{4}", "\u2153": r"\frac{1}{3}", "\u2154": r"\frac{2}{3}",
    "\u2010": "-", "\u2011": "-", "\ufe63": "-", "\u3001": ",", "\u3002": ".",
    "\u03b3": r"\gamma ", "\u03b4": r"\delta ", "\u03b5": r"\epsilon ", "\u03bc": r"\mu ", "\u03c1": r"\rho ", "\u03c3": r"\sigma ",
    "\u03c4": r"\tau ", "\u03c6": r"\phi ", "\u03c9": r"\omega ", "\u0394": r"\Delta ", "\u03a9": r"\Omega ",
    **{chr(0xFF01 + place): chr(0x21 + place) for place in range(94)},
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u00ad\u200e\u200f", ""),
}  # fmt: skip
"""Typography, fullwidth forms, and characters of no width."""
_ARGUMENTS = {r"\frac": 2, r"\binom": 2, r"\sqrt": 1}
_RAISED = str.maketrans("\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b\u207f", "0123456789-n")
_ALIASES = {
    "dfrac": r"\frac", "tfrac": r"\frac", "cfrac": r"\frac", "nicefrac": r"\frac", "sfrac": r"\frac",
    "dbinom": r"\binom", "tbinom": r"\binom", "leq": r"\le ", "leqslant": r"\le ",
    "geq": r"\ge ", "geqslant": r"\ge ", "neq": r"\ne ", "times": r"\cdot ", "ast": r"\cdot ", "div": "/", "lbrace": r"\{", "rbrace": r"\}",
    "lvert": "|", "rvert": "|", "vert": "|", "lt": "<", "gt": ">", "varnothing": r"\emptyset ", "degree": r"^\circ ", "lbrack": "[",
    "rbrack": "]", "mathrm": r"\text", "textbf": r"\text", "textit": r"\text", "textrm": r"\text", "mathbf": r"\text", "mathit": r"\text",
    "mathsf": r"\text", "mbox": r"\text", "operatorname": r"\text", "boldsymbol": r"\text", "bm": r"\text",
    "textnormal": r"\text", "R": r"\mathbb{R}", "infin": r"\infty ", "colon": ":",
    **{name: rf"\{own} " for name, own in _ABROAD.items()},
    **dict.fromkeys(
        _listed("left right middle big Big bigg Bigg bigl bigr Bigl Bigr displaystyle textstyle limits quad qquad thinspace space boxed"),
        " ",
    ),
}  # fmt: skip
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_WORDY = re.compile(
    r"(?<![A-Za-z\\{])(sqrt|pi|theta|inf(?:ty|inity)?|arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|ln|log|exp)(?![A-Za-z}])"
)
_FUNCTION_TEXT = re.compile(r"\\text\{\s*(" + "|".join(sorted((*FUNCTIONS, *_ABROAD), key=len, reverse=True)) + r")\s*\}")
SCALES = {"dozen": 12, "hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_SCALE = re.compile(rf"(?<=[\d}}])\s*(\\text\{{)?\s*({'|'.join(SCALES)})(?![A-Za-z])\s*", re.IGNORECASE)
_TIMES_TEN = re.compile(r"(?<=\d)\s*[xX]\s*(?=10\s*(?:\^|\*\*))")
_TO = re.compile(r"(?<=\d)\s+to\s+(?=\d)|(?<=\d)\s*\\text\{\s*to\s*\}\s*(?=\d)")
_SYSTEM = re.compile(
    r"(?:\\left\s*)?(?:\\\{\s*)?\\begin\{(cases|aligned|gathered|array)\}\s*(?:\{[lcr| ]*\})?(.*?)\\end\{\1\}(?:\s*\\right\s*\.)?",
    re.DOTALL,
)
_DOTTED = re.compile(r"(?<=[.\d])\\dot\s*\{?(\d)\}?(?:(\d*)\\dot\s*\{?(\d)\}?)?")
_RATE = re.compile(r"\\text\{[\s~]*([A-Za-z]+)\s*\}\s*/\s*\\text\{[\s~]*([A-Za-z]+)\s*\}")
_CHOOSE = re.compile(r"\{([^{}]*)\\choose(?![A-Za-z])([^{}]*)\}")
_INTEGER = re.compile(r"\s*(?:,\s*[a-z]\s*\\in\s*\\mathbb\s*\{?Z\}?|\(\s*[a-z]\s*\\in\s*\\mathbb\s*\{?Z\}?\s*\))[\s.$]*$")
"""`, k \\in Z` behind a family of solutions: a parameter is an integer anyway."""
_SIGN = re.compile(r"\s*(?:\\[A-Za-z]+|[^\w\s])\s*")
_PROSE = re.compile(r"(?<![A-Za-z])[A-Za-z]{3,}(?= )|(?<= )[A-Za-z]{3,}|(?<=\d )[A-Za-z]{1,2}(?= \d)")
_THOUSANDS = re.compile(r"(?<![\d.,_^])([1-9]\d{0,2})((?:(?P<gap>,|\{,\}|\\,|\\ | )\d{3})(?:(?P=gap)\d{3})*)(?![\d]|,\d)")
_NUMBER = re.compile(
    r"(?P<whole>\d+)?(?:\.(?P<part>\d+)?(?:\\overline\s*\{(?P<repeat>\d+)\})?)?(?:[eE](?P<exponent>[-+]?\d{1,4})(?![\d.]))?"
)
_TOO_LARGE = re.compile(r"[eE][-+]?\d")
"""An exponent that `_NUMBER` leaves: it would be read as a product with the number e."""


class Unreadable(Exception):
    """The text has no reading, or more than one."""


def clean(text: str) -> str:
    """One spelling for characters, sizes, spaces and aliases. Raises Unreadable for a text that is too long or too deep."""
    if len(text) > LONGEST:
        raise Unreadable("too long")
    text = _SYSTEM.sub(_listed_equations, text)
    text = re.sub("[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207b\u207f]+", lambda m: "^{" + m.group().translate(_RAISED) + "}", text)
    text = re.sub(r"\u221a\s*(\d+(?:\.\d+)?|[A-Za-z])", r"\\sqrt{\1}", text).replace("\u221a", r"\sqrt ")
    text = "".join(_CHARACTERS.get(character, character) for character in text)
    text = re.sub(r"(?<!\\)\$([^$]+)(?<!\\)\$(?!\d)", r" \1 ", text.replace("$$", " "))  # a pair of them; one alone is a currency
    text = re.sub(r"\\[()\[\]]|(?<!\\)\$(?=[^\d]|$)", " ", text)
    text = re.sub(r"(?<!\\)\\(?= )", "", text).replace(r"\operatorname*", r"\operatorname")
    text = _COMMAND.sub(lambda m: _ALIASES.get(m[1], "\\" + m[1]), text)
    text = _SCALE.sub(lambda m: rf"\cdot {SCALES[m[2].casefold()]} {m[1] or ''}", text)
    text = re.sub(r"\\text\{\s*\}", " ", text)
    text = _FUNCTION_TEXT.sub(lambda m: f"\\{_ABROAD.get(m[1], m[1])} ", text)
    text = _RATE.sub(r"\\text{\1/\2}", _CHOOSE.sub(r"\\binom{\1}{\2}", _INTEGER.sub("", text)))
    text = _DOTTED.sub(lambda m: rf"\overline{{{m[1]}{m[2] or ''}{m[3] or ''}}}", text)
    text = re.sub(r"\\text\{([ei])\}", r" \1 ", text)  # the number e, and i, set upright
    text = re.sub(r"\\begin\{array\}\s*\{[^{}]*\}", r"\\begin{matrix}", text).replace(r"\end{array}", r"\end{matrix}")
    text = _TO.sub(":", _TIMES_TEN.sub(r"\\cdot ", re.sub(r"(?<![A-Za-z])([apAP])\.\s?([mM])(?![A-Za-z])", r"\1\2", text)))
    text = _WORDY.sub(lambda m: "\\" + ("infty" if m[1].startswith("inf") else m[1]) + " ", text)
    text = re.sub(r"\^\s*\{?\s*\\circ\s*\}?|\\circ(?![A-Za-z])", r"^\\circ ", text)
    text = text.replace("**", "^").replace("*", r"\cdot ").replace("<=", r"\le ").replace(">=", r"\ge ").replace("!=", r"\ne ")
    text = re.sub(r"\\[!;:>]|~", " ", text).replace(r"\%", "%")
    if _depth(text) > DEEPEST:
        raise Unreadable("too deep")
    return " ".join(text.split())


def _listed_equations(match: re.Match[str]) -> str:
    """The equations of a system, one per line, as a list; anything else (a function by cases, a matrix) as it is."""
    lines = [line.replace("&=", "=").strip() for line in match[2].strip().removesuffix(r"\\").split(r"\\")]
    return ", ".join(lines) if all("=" in line and "&" not in line for line in lines) else match.group()


def without_thousands(text: str) -> str:
    """`1,234,567`, `1{,}234`, `1\\,234` and `1 234` as 1234567 and 1234; other spacing commands become spaces."""
    joined = _THOUSANDS.sub(lambda m: m[1] + re.sub(r"\D", "", m[2]), text)
    spaced = " ".join(re.sub(r"\\[, ]", " ", joined.replace("{,}", ",")).split())
    return re.sub(r"(?<![\d./^_])(\d+) (\d+)/(\d+)(?![\d.])", _mixed, spaced)


def _mixed(match: re.Match[str]) -> str:
    """`1 1/2` in LaTeX; `5 10/2` stays what it is, two numbers side by side."""
    whole, top, bottom = match.groups()
    return rf"{whole}\frac{{{top}}}{{{bottom}}}" if (len(top), top) < (len(bottom), bottom) else match.group()


def _depth(text: str) -> int:
    depth = deepest = 0
    for match in re.finditer(r"\\[{}]|[({\[]|[)}\]]", text):
        if match.group()[-1] in "({[":
            depth += 1
        else:
            depth = max(0, depth - 1)
        deepest = max(deepest, depth)
    return deepest


def closing(text: str, start: int) -> int:
    """Position of the bracket that closes the one at `start`: `{` with `}`, any of `( [` with any of `) ]`. Raises Unreadable."""
    braces = text[start] == "{"
    depth, i = 0, start
    while i < len(text):
        if text[i] == "\\":
            i += 2
            continue
        if text[i] in ("{" if braces else "(["):
            depth += 1
        elif text[i] in ("}" if braces else ")]"):
            depth -= 1
            if depth == 0:
                return i
        i += 1
    raise Unreadable("unbalanced brackets")


@dataclass(slots=True)
class _Item:
    """A piece of explicit LaTeX. kind: `number`, `operand`, `name` (a letter or Greek letter), `operator`, `open` (a bar that opens)."""

    kind: str
    latex: str


def explicit(text: str) -> str:
    """One expression as LaTeX without choices; see the module. Raises Unreadable."""
    if prose(text):
        raise Unreadable("words in an expression")
    return _Writer(text).write()


def prose(text: str) -> bool:
    """Whether words stand among numbers or other words: read as products, `5 feet 11 inches` would be `11 feet 5 inches`."""
    return _PROSE.search(_SIGN.sub("+", text)) is not None


class _Writer:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._items: list[_Item] = []
        self._bars = 0
        self._commands: dict[str, Callable[[], None]] = {
            "frac": self._fraction,
            "binom": self._binomial,
            "sqrt": self._root,
            "cdot": lambda: self._operator(r"\cdot "),
            "pi": lambda: self._operand(r"\pi "),
            "infty": lambda: self._operand(r"\infty "),
            "lfloor": lambda: self._rounded("floor"),
            "lceil": lambda: self._rounded("ceil"),
            **{name: partial(self._decorated, name) for name in DECORATIONS},
        }

    def write(self) -> str:
        """The whole text as LaTeX. Raises Unreadable."""
        while self._at < len(self._text):
            self._step()
        if self._bars or not self._items or self._items[-1].kind == "operator":
            raise Unreadable("incomplete expression")
        return "".join(item.latex for item in self._items)

    def _step(self) -> None:
        text, character = self._text, self._text[self._at]
        number = _NUMBER.match(text, self._at) if character.isdigit() or character == "." else None
        if character.isspace():
            self._at += 1
        elif number is not None and number.group() not in ("", "."):
            self._at = number.end()
            self._number(number)
        elif command := _COMMAND.match(text, self._at):
            self._at = command.end()
            self._command(command[1])
        elif character in "([{":
            self._operand(f"({explicit(self._group())})")
        elif character.isascii() and character.isalpha():
            self._at += 1
            self._letter(character)
        else:
            self._at += 1
            self._sign(character)

    def _number(self, match: re.Match[str]) -> None:
        if self._items and self._items[-1].kind == "number":
            raise Unreadable("two numbers side by side")
        if _TOO_LARGE.match(self._text, self._at):
            raise Unreadable("exponent")
        self._operand(exact(match), "number")

    def _letter(self, letter: str) -> None:
        if letter == "I":
            letter = r"\text{I}"  # the grammar would take it for the imaginary unit
        elif letter == "i":
            letter = "(I)"  # a bare one loses its exponent there
        self._operand(letter, "name")
        self._subscript()
        rest = self._text[self._at :].lstrip()
        if letter in APPLIED and rest.startswith("("):
            self._at = len(self._text) - len(rest)
            self._items[-1] = _Item("operand", f"{self._items[-1].latex}({explicit(self._group())})")

    def _subscript(self) -> None:
        rest = self._text[self._at :].lstrip()
        if rest.startswith("_"):
            self._at = len(self._text) - len(rest) + 1
            inner = re.sub(r"\\text\{(.*?)\}", r"\1", self._argument(signed=True)).replace(" ", "")
            if not re.fullmatch(r"[A-Za-z0-9+-]+", inner):
                raise Unreadable("subscript")
            self._items[-1] = _Item("operand", f"{self._items[-1].latex}_{{{inner}}}")

    def _sign(self, character: str) -> None:
        if character in "+-/:":
            self._operator("/" if character == ":" else character)
        elif character == "^":
            self._power()
        elif character == "!":
            self._after_operand("!")
        elif character == "%":
            self._after_operand(r"\cdot \frac{1}{100}")
        elif character == "|":
            self._bar()
        else:
            raise Unreadable(f"{character!r} in an expression")

    def _command(self, name: str) -> None:
        if name in self._commands:
            self._commands[name]()
        elif name in FUNCTIONS:
            self._function(name)
        elif name in GREEK:
            self._operand(f"\\{name} " if name not in ("gamma", "Gamma") else rf"\text{{{name}}}", "name")
            self._subscript()
        else:
            raise Unreadable(f"\\{name} in an expression")

    def _operand(self, latex: str, kind: str = "operand") -> None:
        if self._items and self._items[-1].kind in ("number", "operand", "name"):
            self._items.append(_Item("operator", r"\cdot "))
        self._items.append(_Item(kind, latex))

    def _operator(self, latex: str) -> None:
        last = self._items[-1].kind if self._items else "operator"
        signed = latex in "+-" and last in ("operator", "open")
        if last in ("operator", "open") and not signed:
            raise Unreadable("operator without operand")
        if signed and self._items and self._items[-1].kind == "operator" and self._items[-1].latex not in "+-":
            self._items.append(_Item("open", "" if latex == "+" else "-"))  # 3 * -2: the grammar reads a signed factor
            return
        self._items.append(_Item("operator", latex))

    def _after_operand(self, latex: str) -> None:
        if not self._items or self._items[-1].kind not in ("number", "operand", "name"):
            raise Unreadable("sign without operand")
        if latex == "!" and self._items[-1].latex.endswith("!)"):
            raise Unreadable("double factorial")
        self._items[-1] = _Item("operand", f"({self._items[-1].latex}{latex})")

    def _power(self) -> None:
        if re.match(r"\s*\\circ(?![A-Za-z])", self._text[self._at :]):
            self._at += re.match(r"\s*\\circ\s*", self._text[self._at :]).end()  # type: ignore[union-attr]
            self._after_operand(r"\cdot \frac{\pi }{180}")
            return
        exponent = explicit(self._argument(signed=True))
        if not self._items or self._items[-1].kind not in ("number", "operand", "name"):
            raise Unreadable("power without base")
        base = self._items[-1].latex
        self._items[-1] = _Item("operand", f"{{{base}}}^{{{exponent}}}" if "^" in base else f"{base}^{{{exponent}}}")

    def _bar(self) -> None:
        if self._bars and self._items[-1].kind != "operator":
            start = max(i for i, item in enumerate(self._items) if item.latex == "|")
            inner = "".join(item.latex for item in self._items[start + 1 :])
            if not inner:
                raise Unreadable("empty bars")
            del self._items[start:]
            self._bars -= 1
            self._operand(f"|{inner}|")
            return
        if self._items and self._items[-1].kind in ("number", "operand", "name"):
            self._items.append(_Item("operator", r"\cdot "))
        self._items.append(_Item("operator", "|"))
        self._bars += 1

    def _fraction(self) -> None:
        top, bottom = self._argument(), self._argument()
        whole = self._items[-1] if self._items and self._items[-1].kind == "number" else None
        mixed = whole is not None and whole.latex.isdigit() and re.fullmatch(r"\s*\d+\s*", top) and re.fullmatch(r"\s*\d+\s*", bottom)
        if whole is not None and mixed and int(top) < int(bottom):
            self._items[-1] = _Item("operand", rf"({whole.latex}+\frac{{{int(top)}}}{{{int(bottom)}}})")
        else:
            self._operand(rf"\frac{{{explicit(top)}}}{{{explicit(bottom)}}}")

    def _binomial(self) -> None:
        self._operand(rf"\binom{{{explicit(self._argument())}}}{{{explicit(self._argument())}}}")

    def _root(self) -> None:
        degree = ""
        if self._text[self._at : self._at + 1] == "[":
            degree = f"[{explicit(self._group())}]"
        if re.match(r"\s*\d[\d.]", self._text[self._at :]):
            raise Unreadable("a root of digits without braces")
        self._operand(rf"\sqrt{degree}{{{explicit(self._argument())}}}")

    def _decorated(self, name: str) -> None:
        """A vector, a conjugate, an angle: one name, whatever it stands for."""
        letters = re.match(r"\s*(?:\{\s*([A-Za-z0-9 ]+)\}|([A-Za-z]+))", self._text[self._at :])
        if letters is None:
            raise Unreadable(f"\\{name} of an expression")
        self._at += letters.end()
        self._operand(rf"\text{{{name}{(letters[1] or letters[2]).replace(' ', '')}}}")

    def _rounded(self, name: str) -> None:
        end = self._text.find(f"\\r{name}", self._at)
        if end < 0:
            raise Unreadable("unbalanced brackets")
        inner = explicit(self._text[self._at : end])
        self._at = end + len(name) + 2
        self._operand(rf"\l{name} {inner}\r{name} ")

    def _function(self, name: str) -> None:
        """A function with its subscript and power, applied to a bracket, or to the factors up to the next sign or function."""
        parts = {"_": "", "^": ""}
        while (mark := self._text[self._at :].lstrip()[:1]) in parts and mark:
            self._at = self._text.index(mark, self._at) + 1
            parts[mark] = f"{mark}{{{explicit(self._argument(signed=True))}}}"
        rest = self._text[self._at :].lstrip()
        self._at = len(self._text) - len(rest)
        if rest[:1] and rest[0] in "([{":
            inner = explicit(self._group())
        elif rest.startswith("|") and "|" in rest[1:]:
            stop = self._at + rest.index("|", 1) + 1
            inner, self._at = explicit(self._text[self._at : stop]), stop
        else:
            end = re.search(rf"[-+=,;)\]/|<>]|\\(?:cdot|{'|'.join(FUNCTIONS)})(?![A-Za-z])", rest[1:])
            stop = self._at + (end.start() + 1 if end else len(rest))
            inner, self._at = explicit(self._text[self._at : stop]), stop
        self._applied(name, inner, parts["_"], parts["^"])

    def _applied(self, name: str, inner: str, base: str, power: str) -> None:
        if name == "log":  # e to the power of a logarithm of another base is taken for its argument
            quotient = rf"\frac{{\ln({inner})}}{{\ln({base[2:-1] or '10'})}}"
            self._operand(f"({quotient}){power}" if power else quotient)
        elif name == "exp" and not base and not power:
            self._operand(rf"e^{{{inner}}}")
        else:
            self._operand(rf"\{name}{base}{power}({inner})")

    def _group(self) -> str:
        """The content of the bracket that opens here."""
        end = closing(self._text, self._at)
        inner = self._text[self._at + 1 : end]
        self._at = end + 1
        return inner

    def _argument(self, signed: bool = False) -> str:
        """What a command or a power takes: a group, a command with its own arguments, one digit or letter; `signed`: a whole number."""
        rest = self._text[self._at :].lstrip()
        self._at = len(self._text) - len(rest)
        if not rest:
            raise Unreadable("argument missing")
        if rest[0] in "{(":
            return self._group()
        match = re.match(r"\\[A-Za-z]+", rest) or (re.match(r"[-+]?(?:\d+(?:\.\d+)?|[A-Za-z]|\\[A-Za-z]+)", rest) if signed else None)
        taken = match.group() if match else rest[0]
        start, self._at = self._at, self._at + len(taken)
        for _ in range(_ARGUMENTS.get(taken, 0)):
            self._argument()
        return self._text[start : self._at]


def exact(match: re.Match[str]) -> str:
    """A number as an integer or an exact fraction of integers, in LaTeX; `0.\\overline{3}` is 1/3."""
    whole, part, repeat = match["whole"] or "", match["part"] or "", match["repeat"] or ""
    top, bottom = int(whole + part or "0"), 10 ** len(part)
    if repeat:
        scale = 10 ** len(repeat) - 1
        top, bottom = top * scale + int(repeat), bottom * scale
    power = int(match["exponent"] or 0)
    top, bottom = top * 10 ** max(power, 0), bottom * 10 ** max(-power, 0)
    return str(top) if bottom == 1 else rf"\frac{{{top}}}{{{bottom}}}"
