"""Verdicts on mistakes: those that were noticed, those that were not, and why."""
import os


def read_explained(path):
    """Lines `FILE: LINE WITH THE ⟦MISTAKE⟧  # same: why` or `# gap: what is missing`."""
    if not os.path.exists(path):
        return {}
    explained = {}
    for line in open(path):
        if line.strip() and not line.startswith('#'):
            name, _, why = line.rstrip('\n').partition('  # ')
            explained[name.strip()] = why
    return explained


def count(verdicts, explained):
    """Mistakes that were killed, that survived, that are none, and survivors that are not explained."""
    killed = sum(v.startswith('killed') for _, v in verdicts)
    why = [explained.get(m.name, '') for m, v in verdicts if v == 'survived']
    same = sum(w.startswith('same:') for w in why)
    return killed, len(why) - same, same, why.count('')


def tables(verdicts, explained, *groups):
    """Lines of a table for each group: its name, and its value for a mistake."""
    out = []
    for what, group in groups:
        out += [f'| {what} | mistakes | killed | share | known gaps | not explained | are none |',
                '| --- |' + ' ---: |' * 6]
        for name in sorted({group(m) for m, _ in verdicts}) + ['all']:
            killed, survived, same, unknown = count([(m, v) for m, v in verdicts if name in ('all', group(m))], explained)
            share = f'{100.0 * killed / (killed + survived):.1f} %' if killed + survived else ''
            out.append(f'| {name} | {killed + survived} | {killed} | {share} | {survived - unknown} | {unknown} | {same} |')
        out.append('')
    return out
