"""Mistakes in the text of C and of kernels: which there are, and the text with all of them, one to be chosen at run time."""
import collections, functools, re


def blank(text):
    """The text without comments, strings, preprocessor lines and what nvcc alone compiles; all places as they were."""
    def spaces(match):
        return re.sub(r'[^\n]', ' ', match.group())
    characters = r"'(?:\\.|[^'\\\n])+'" # a number, too: what is compared with it stays
    text = re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|' + characters,
                  lambda match: '0' * len(match[0]) if match[0][0] == "'" else spaces(match), text, flags=re.S)
    out, depth = [], []
    for line in text.split('\n'):
        word = re.match(r'\s*#\s*(\w+)(.*)', line)
        if word and word[1] in ('if', 'ifdef', 'ifndef'):
            depth.append('__CUDA' in word[2] and word[1] != 'ifndef')
        elif word and word[1] in ('else', 'elif') and depth:
            depth[-1] = '__CUDA' in word[2]
        elif word and word[1] == 'endif' and depth:
            depth.pop()
        out.append(' ' * len(line) if word or any(depth) else line)
    # A macro's further lines belong to the preprocessor, too.
    joined, lines, inside = [], text.split('\n'), False
    for line, kept in zip(lines, out):
        joined.append(' ' * len(line) if inside else kept)
        inside = line.endswith('\\') and (inside or line.lstrip().startswith('#'))
    return '\n'.join(joined)


def closing(text, at):
    """Where the parenthesis or brace that is opened there is closed."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] in '({') - (text[i] in ')}')
        if depth == 0:
            return i
    return -1


@functools.lru_cache(maxsize=64)
def spans(code, what):
    """(begin, end) of what is in the parentheses or braces behind something, or before the semicolon."""
    return [(start.start(), closing(code, start.end()) if code[start.end()] in '({' else start.end())
            for start in re.finditer(what, code)]


def within(code, at, what):
    """Tells whether a place is in one of these."""
    return any(begin <= at < end for begin, end in spans(code, what))


def places_of(text):
    """(begin, end, replacement, kind) of each mistake."""
    code, found = blank(text), []
    for m in re.finditer(r'(?<=[;{}\n)])(\s*)\b(\w*(?:sync|wait|commit|expect|fence|barrier)\w*(?:<[^;<>()]*>)?)\(', code):
        end = closing(code, m.end() - 1)
        if re.match(r'\s*;', code[end + 1:]):
            found.append((m.start(2), end + 1, '', 'barrier'))
    for m in re.finditer(r'\bif \(', code):
        found += [(m.end(), closing(code, m.end() - 1), always, 'check') for always in ('true', 'false')]
    for m in re.finditer(r' (<|<=|>|>=|==|!=) (?=\S)', code):
        line = code[code.rfind('\n', 0, m.start()) + 1:code.find('\n', m.end())]
        if re.search(r'([\w.:>-]+) [<>]=? ([\w.:>-]+) \? \1 : \2', line):
            continue # the lesser or the larger of two: the same where they are equal
        other = {'<': '<=', '<=': '<', '>': '>=', '>=': '>', '==': '!=', '!=': '=='}[m[1]]
        found.append((m.start(1), m.end(1), other, 'comparison'))
    for m in re.finditer(r' (&&|\|\|) (?=\S)', code):
        found.append((m.start(1), m.end(1), '||' if m[1] == '&&' else '&&', 'check'))
    term = r'[\w.]+(?:->\w+|\.\w+|::\w+)*'
    for m in re.finditer(r'(?<=[\w)\]]) (\+|-|\*|/|%|&|\||\^|<<|>>) (?=[\w(])', code):
        at = m.end()
        word = re.match(term, code[at:])
        end = at + (word.end() if word else 0)
        while end < len(code) and code[end] in '([<':
            if code[end] == '<':
                angle = re.match(r'<[\w ,]*\*?>(?=\()', code[end:])
                if not angle:
                    break
                end += angle.end()
                continue
            end = (code.find(']', end) if code[end] == '[' else closing(code, end)) + 1
        if end > at:
            found.append((m.start(), end, '', 'term'))
    for m in re.finditer(r'(?<=[;{}\n)])(\s*)([\w.\->\[\]*:]+ (?:\+|-|\*|/|\||<<|>>)= [^;{}]*)[;{]', code):
        found.append((m.start(2), closing('(' + code[m.start(2):m.end(2)] + ')', 0) - 1 + m.start(2), '', 'update'))
    for m in re.finditer(r'(?<=\w)(\+\+|--)(?=;)', code):
        found.append((m.start(1), m.end(1), '', 'term'))
    return sorted(f for f in set(found) if not within(code, f[0], r'\bstatic_assert\b'))


class Mutant:
    def __init__(self, file, text, begin, end, replacement, kind):
        self.file, self.kind = file, kind
        self.begin, self.end, self.replacement = begin, end, replacement
        self.number = 0 # in the program that has them all; 0: is not in it
        self.line = text.count('\n', 0, begin) + 1
        first = text.rfind('\n', 0, begin) + 1
        last = text.find('\n', end)
        change = '⟦' + ' '.join(text[begin:end].split()) + ' → ' + replacement + '⟧'
        self.name = file + ': ' + ' '.join((text[first:begin] + change + text[end:last]).split())


def mutants_of(file, text, places=places_of):
    """All mistakes, by place; those of one name are numbered."""
    mutants = [Mutant(file, text, *place) for place in places(text)]
    names = collections.Counter()
    for m in mutants:
        names[m.name] += 1
        m.name += f' ({names[m.name]})' if names[m.name] > 1 else ''
    return mutants


# --- All of them in one text -----------------------------------------------------------------------------------------
# The expression around a mistake, E, becomes (rs_mutant == 7 ? (E with mistake 7) : (E)), and RS_MUTANT=7 in the
# environment chooses. Lines stay where they are. What does not compile so, as it has to be constant, is left as it was.
STATEMENTS = ('barrier', 'update', 'call')
CONSTANT = r'(?<!if )\bconstexpr\b[^;{]*|\benum\b[^;{]*'


def expression(code, m):
    """(begin, end) of the expression that a mistake is in: up to a bracket, a comma or a semicolon."""
    if m.kind in STATEMENTS:
        return m.begin, m.end
    begin, depth = m.begin, 0
    while begin > 0:
        c = code[begin - 1]
        if depth == 0 and (c in '([{;,' or c == '}' and re.match(r'\s*[\w*(+-]', code[begin:])):
            break
        depth += (c in ')]}') - (c in '([{')
        begin -= 1
    end, depth = m.end, 0
    while depth > 0 or code[end] not in ')]};,':
        depth += (code[end] in '([{') - (code[end] in ')]}')
        end += 1
    while True: # what may stand before an expression
        before = re.match(r'\s+|(?:return|else|do)\b|\w+:(?=\n)|(?:case [^:?]+|default):(?!:)|((?:if|for|while|switch)(?: constexpr)? )\(',
                          code[begin:m.begin])
        if not before:
            break
        begin = closing(code, begin + before.end(1)) + 1 if before[1] else begin + before.end()
    for equals in re.finditer(r' (?:[-+*/%&|^]|<<|>>)?= ', code[begin:m.begin]):
        between = code[begin + equals.end():m.begin]
        if all(between.count(a) == between.count(b) for a, b in ('()', '[]', '{}')):
            begin += equals.end()
            break
    return begin, end


def without_commas(code):
    """Template arguments without commas, which would end an expression."""
    return re.sub(r'(?<=\w)<[\w:, *]*>(?=\(|::)', lambda angle: angle[0].replace(',', ' '), code)


def with_all(text, mutants, chosen='rs_mutant == %d'):
    """The text of a file with all these mistakes, which have numbers; `chosen`: how one is asked for."""
    code = without_commas(blank(text))
    bare = re.sub(r"'(?:\\.|[^'\\\n])+'|" r'"(?:\\.|[^"\\\n])*"|/\*.*?\*/|//[^\n]*', # comments alone
                  lambda c: c[0] if c[0][0] in '"\'' else re.sub(r'[^\n]', ' ', c[0]), text, flags=re.S)
    places = {}
    for m in mutants:
        if m.number:
            places.setdefault(expression(code, m), []).append(m)

    def render(begin, end, places):
        out = []
        for place in sorted(places, key=lambda p: (p[0], -p[1])):
            if place[0] < begin:
                continue # inside of the last one
            inside = {p: places[p] for p in places if place[0] <= p[0] and p[1] <= place[1] and p != place}
            right, void = render(*place, inside), '(void)' if places[place][0].kind in STATEMENTS else ''
            out.append(bare[begin:place[0]] + '(')
            for m in places[place]:
                changed = bare[place[0]:m.begin] + m.replacement + bare[m.end:place[1]]
                out.append(f'{chosen % m.number} ? {void}({changed.strip() or 0}) : '.replace('\n', ' '))
            out.append(f'{void}({right}))'.replace('\n', ' ') + '\n' * bare.count('\n', *place))
            begin = place[1]
        return ''.join(out) + bare[begin:end]
    return render(0, len(bare), places)
