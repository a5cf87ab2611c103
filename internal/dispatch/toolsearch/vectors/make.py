"""Makes vectors.bin: python3 make.py MINILM SEAL_TOOLS GORILLA TOOLALPACA METATOOL, which are the folder of the model
and clones of the repositories named in README.md. It needs numpy, scipy, tokenizers and snowballstemmer."""
import csv, io, json, re, struct, subprocess, sys, zlib
from collections import Counter
import random
import numpy as np
import scipy.sparse as sp
import snowballstemmer
from tokenizers import Tokenizer

MODEL, SEAL, GORILLA, ALPACA, META = sys.argv[1:6]
DIMS, EPOCHS, BATCH, TEMPERATURE = 64, 2, 512, 0.06
STOP = set(re.search(r'FieldsSeq\(`(.*?)`\)', open('../terms.go').read(), re.S).group(1).split())
stemmer = snowballstemmer.stemmer('english')


def words(text):
    text = re.sub(r'([a-z])([A-Z])', r'\1 \2', text)
    text = re.sub(r'([A-Z]+)([A-Z][a-z])', r'\1 \2', text)
    return [stemmer.stemWord(w) for w in re.findall(r'[a-z]+|[0-9]+', text.lower()) if w not in STOP]


def name(text):
    return re.sub(r'([a-z])([A-Z])', r'\1 \2', text).replace('_', ' ').replace('-', ' ')


class Model:
    """The encoder of MiniLM, with the mean of its outputs as the vector."""

    def __init__(self, folder):
        raw = open(folder + '/model.safetensors', 'rb').read()
        size = struct.unpack('<Q', raw[:8])[0]
        self.w = {}
        for key, v in json.loads(raw[8:8 + size]).items():
            if key != '__metadata__' and v['dtype'] == 'F32':
                a, b = v['data_offsets']
                self.w[key] = np.frombuffer(raw[8 + size + a:8 + size + b], np.float32).reshape(v['shape'])
        self.tokenizer = Tokenizer.from_file(folder + '/tokenizer.json')
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()

    def norm(self, x, at):
        mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) / np.sqrt(var + 1e-12) * self.w[at + '.weight'] + self.w[at + '.bias']

    def linear(self, x, at):
        return x @ self.w[at + '.weight'].T + self.w[at + '.bias']

    def encode(self, ids, mask):
        n, length = ids.shape
        e = 'embeddings.'
        x = self.w[e + 'word_embeddings.weight'][ids] + self.w[e + 'position_embeddings.weight'][:length]
        x = self.norm(x + self.w[e + 'token_type_embeddings.weight'][0], e + 'LayerNorm')
        for layer in range(6):
            at = f'encoder.layer.{layer}.'
            q, k, v = [self.linear(x, at + 'attention.self.' + s).reshape(n, length, 12, 32).transpose(0, 2, 1, 3)
                       for s in ('query', 'key', 'value')]
            s = q @ k.transpose(0, 1, 3, 2) / np.sqrt(32) + ((1 - mask) * -1e9)[:, None, None, :]
            s = np.exp(s - s.max(-1, keepdims=True))
            s /= s.sum(-1, keepdims=True)
            c = (s @ v).transpose(0, 2, 1, 3).reshape(n, length, 384)
            x = self.norm(self.linear(c, at + 'attention.output.dense') + x, at + 'attention.output.LayerNorm')
            y = self.linear(x, at + 'intermediate.dense')
            y = y * .5 * (1 + np.tanh(.7978845608 * (y + .044715 * y ** 3)))
            x = self.norm(self.linear(y, at + 'output.dense') + x, at + 'output.LayerNorm')
        return x

    def embed(self, texts, batch=512):
        ids = [e.ids for e in self.tokenizer.encode_batch(texts)]
        order, out = sorted(range(len(ids)), key=lambda i: len(ids[i])), np.zeros((len(ids), 384), np.float32)
        for at in range(0, len(order), batch):
            part = order[at:at + batch]
            length = max(len(ids[i]) for i in part)
            padded, mask = np.zeros((len(part), length), int), np.zeros((len(part), length), np.float32)
            for row, i in enumerate(part):
                padded[row, :len(ids[i])], mask[row, :len(ids[i])] = ids[i], 1
            x = (self.encode(padded, mask) * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
            out[part] = x / np.linalg.norm(x, axis=1, keepdims=True)
        return out


def show(repository, path):
    return subprocess.check_output(['git', '-C', repository, 'show', 'HEAD:' + path]).decode()


def read_pairs():
    """Returns requests with the tools that answer them, as texts, and a weight."""
    pairs, tools = [], {}
    for line in show(SEAL, 'Seal-Tools_Dataset/tool.jsonl').splitlines():
        t = json.loads(line)
        tools[t['api_name']] = name(t['api_name']) + ' ' + t['api_description']
    for part in ('dev', 'test_in_domain', 'test_out_domain'):
        for line in show(SEAL, f'Seal-Tools_Dataset/{part}.jsonl').splitlines():
            q = json.loads(line)
            pairs += [(q['query'], tools[c['api']], 1 / len(q['calling'])) for c in q['calling'] if c['api'] in tools]
    at = 'berkeley-function-call-leaderboard/bfcl_eval/data/'
    for part in ('live_multiple', 'multiple', 'simple_python', 'live_simple', 'parallel', 'simple_java',
                 'simple_javascript', 'parallel_multiple', 'live_parallel', 'live_parallel_multiple'):
        answers = {}
        for line in show(GORILLA, f'{at}possible_answer/BFCL_v4_{part}.json').splitlines():
            a = json.loads(line)
            answers[a['id']] = {k for g in a['ground_truth'] for k in g}
        for line in show(GORILLA, f'{at}BFCL_v4_{part}.json').splitlines():
            d = json.loads(line)
            functions = {f['name']: f['description'][:300] for f in d['function']}
            text = ' '.join(m['content'] for turn in d['question'] for m in turn if m['role'] == 'user')[:400]
            pairs += [(text, name(k.replace('.', ' ')) + ' ' + functions[k], 1.0)
                      for k in sorted(answers.get(d['id'], ())) if k in functions]
    for part in ('eval_simulated', 'eval_real'):
        for t in json.loads(show(ALPACA, f'data/{part}.json')):
            pairs += [(q, t['Name'] + ' ' + t['Description'], .5) for q in t.get('Instructions', [])]
    about = json.loads(show(META, 'dataset/plugin_des.json'))
    asked = {}
    for q, t in list(csv.reader(io.StringIO(show(META, 'dataset/data/all_clean_data.csv'))))[1:]:
        if t in about and zlib.crc32(t.encode()) & 1 == 0:  # the others are asked in testdata/metatool.json.gz
            asked.setdefault(t, []).append(q)
    random.seed(2)
    for t, questions in asked.items():
        random.shuffle(questions)
        pairs += [(q, name(t) + ' ' + about[t], 1.0) for q in questions[:100]]
    for line in open('../phrases.txt'):
        keys, _, said = line.strip().partition(':')
        if said and not line.startswith('#'):
            pairs.append((said, keys.replace(';', ' '), .5))
    return pairs


def unit(y):
    n = np.linalg.norm(y, axis=1, keepdims=True) + 1e-6
    return y / n, n


def train(x, weights, bags, documents, weight):
    """Learns a projection of the model's vectors, an addition for each stem and its weight, such that a request is more
    alike to its tool than to those of the other requests of a batch."""
    projection = np.linalg.svd(x.T @ x)[2][:DIMS].T.astype(np.float32)
    p = {'A': projection, 'D': np.zeros((len(x), DIMS), np.float32), 'w': weights}
    mean, square = [{k: np.zeros_like(v) for k, v in p.items()} for _ in range(2)]
    rng, t = np.random.default_rng(0), 0
    for _ in range(EPOCHS):
        order = rng.permutation(len(documents))
        for at in range(0, len(order) - BATCH // 2 + 1, BATCH):
            k = order[at:at + BATCH]
            scale = np.exp(p['w'])[:, None]
            e = (x @ p['A'] + p['D']) * scale
            (q, nq), (d, nd) = unit(bags[0][k] @ e), unit(bags[1][k] @ e)
            s = q @ d.T / TEMPERATURE
            same = documents[k][:, None] == documents[k][None, :]
            np.fill_diagonal(same, False)
            s[same] = -1e9
            rows, columns = np.exp(s - s.max(1, keepdims=True)), np.exp(s - s.max(0, keepdims=True))
            one = np.eye(len(k), dtype=np.float32)
            g = (rows / rows.sum(1, keepdims=True) - one) * weight[k][:, None]
            g = (g + (columns / columns.sum(0, keepdims=True) - one) * weight[k]) / (2 * len(k) * TEMPERATURE)
            gq, gd = g @ d, g.T @ q
            gq, gd = (gq - q * (gq * q).sum(1, keepdims=True)) / nq, (gd - d * (gd * d).sum(1, keepdims=True)) / nd
            ge = bags[0][k].T @ gq + bags[1][k].T @ gd
            t += 1
            slopes = {'A': x.T @ (ge * scale), 'D': ge * scale, 'w': (ge * e).sum(1)}
            for key, rate in (('A', 1e-3), ('D', 3e-3), ('w', 1e-2)):
                g = slopes[key]
                mean[key] = .9 * mean[key] + .1 * g
                square[key] = .99 * square[key] + .01 * g ** 2
                p[key] -= rate * (mean[key] / (1 - .9 ** t)) / (np.sqrt(square[key] / (1 - .99 ** t)) + 1e-5)
            p['D'] *= .999
    return (x @ p['A'] + p['D']) * np.exp(p['w'])[:, None]


def main():
    vocabulary = [line.rstrip('\n') for line in open(MODEL + '/vocab.txt', encoding='utf8')]
    vocabulary = [w for w in vocabulary if re.fullmatch(r'[a-z][a-z]+|[0-9]{1,4}', w)]  # frequent ones come first
    vectors, of = Model(MODEL).embed(vocabulary), {}
    for i, w in enumerate(vocabulary):
        of.setdefault(stemmer.stemWord(w), []).append(i)
    stems = sorted(of)
    index = {s: i for i, s in enumerate(stems)}
    x = np.array([vectors[of[s]].mean(0) for s in stems], np.float32)
    x, _ = unit(x - x.mean(0))
    weights = np.log(np.log(20 + np.array([min(of[s]) for s in stems]))).astype(np.float32)
    pairs = read_pairs()

    def bag(texts):
        row, column, value = [], [], []
        for i, text in enumerate(texts):
            for k, n in Counter(index[w] for w in words(text[:300]) if w in index).items():
                row.append(i), column.append(k), value.append(1 + np.log(n))
        return sp.csr_matrix((value, (row, column)), shape=(len(texts), len(stems)), dtype=np.float32)

    ids = {}
    documents = np.array([ids.setdefault(p[1], len(ids)) for p in pairs])
    e = train(x, weights - weights.mean(), (bag([p[0] for p in pairs]), bag([p[1] for p in pairs])), documents,
              np.array([p[2] for p in pairs], np.float32))
    scale = np.abs(e).max(1) / 7
    scale[scale == 0] = 1
    q = np.clip(np.round(e / scale[:, None]), -7, 7).astype(int) + 8
    body = ('\n'.join(stems) + '\n').encode()
    with open('../vectors.bin', 'wb') as f:
        f.write(b'GHWV' + struct.pack('<III', len(stems), DIMS, len(body)) + body)
        f.write((scale.astype(np.float32).view(np.uint32) + 0x8000 >> 16).astype('<u2').tobytes())
        f.write((q[:, 0::2] | (q[:, 1::2] << 4)).astype(np.uint8).tobytes())


main()
