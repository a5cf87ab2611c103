package index

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
)

// lsaSpace names the vectors of latent semantic analysis. Each collection has a model of its own.
const lsaSpace = "lsa/1"

const (
	lsaDims   = 200
	lsaExtra  = 16     // dimensions that are computed and dropped, for accuracy
	lsaRounds = 3      // power iterations; of many texts one less suffices
	lsaMany   = 8_000  // texts
	lsaTerms  = 24_000 // in the vocabulary
	lsaSample = 12_000 // chunks that a model is made of
)

// lsa is a model of latent semantic analysis: a vector for each term, such that texts whose words occur in the same
// company get similar vectors.
type lsa struct {
	dims  int
	terms map[string]int32
	idf   []float32
	rows  []float32 // terms x dims
}

// bag is the weighted terms of one text.
type bag struct {
	term   []int32
	weight []float32
}

// stems calls f with the stems of the words of a text that mean something.
func stems(text string, f func(stem string)) {
	runs(text, func(w string) {
		if s := stemOf(w); s != "" {
			f(s)
		}
	})
}

// stemOf returns the stem of a run of letters and digits; "" if it means nothing.
func stemOf(run string) string {
	if len(run) < 2 || len(run) > maxWord {
		return ""
	}
	if run = strings.ToLower(run); stopwords[run] {
		return ""
	}
	return stem(run)
}

// newLSA makes a model of some texts. Its time grows with the number of their words; a sample suffices. It returns
// nil for fewer than 8 texts, or if they share no words.
func newLSA(texts []string) *lsa {
	if len(texts) < 8 {
		return nil
	}
	m := &lsa{}
	m.learnTerms(texts)
	bags := make([]bag, 0, len(texts))
	e := m.embedding()
	for _, t := range texts {
		if b := e.bag(t); len(b.term) > 0 {
			bags = append(bags, b)
		}
	}
	k := min(lsaDims, len(m.terms)/2, len(bags)/2)
	if k < 2 {
		return nil
	}
	m.dims = k
	m.rows = leftVectors(bags, len(m.terms), k)
	return m
}

// learnTerms takes the terms that several texts have; of too many those that most have.
func (m *lsa) learnTerms(texts []string) {
	df := map[string]int32{}
	type word struct {
		stem string // "" for one that means nothing
		last int    // the text that had it last, from 1
	}
	known, last := map[string]*word{}, map[string]int{}
	for i, t := range texts {
		runs(t, func(w string) {
			k := known[w]
			if k == nil {
				k = &word{stem: stemOf(w)}
				known[strings.Clone(w)] = k
			}
			if k.stem == "" || k.last == i+1 {
				return
			}
			k.last = i + 1
			if last[k.stem] != i+1 {
				last[k.stem] = i + 1
				df[k.stem]++
			}
		})
	}
	var kept []string
	for s, n := range df {
		if n > 1 && int(n) <= len(texts)*2/3+1 {
			kept = append(kept, s)
		}
	}
	slices.SortFunc(kept, func(a, b string) int {
		if d := int(df[b]) - int(df[a]); d != 0 {
			return d
		}
		if a < b {
			return -1
		}
		return 1
	})
	kept = kept[:min(len(kept), lsaTerms)]
	m.terms = make(map[string]int32, len(kept))
	m.idf = make([]float32, len(kept))
	for i, s := range kept {
		m.terms[s] = int32(i)
		m.idf[i] = float32(math.Log(1 + float64(len(texts))/float64(df[s])))
	}
}

// embedding makes bags and vectors. It remembers the terms of words, because stemming them takes longest. It is for
// one goroutine.
type embedding struct {
	m     *lsa
	known map[string]int32 // by word as it is written; -1 if the model does not know it
	count []float32        // by term; 0 between two texts
}

// mostKnown is the number of words that an embedding remembers.
const mostKnown = 100_000

func (m *lsa) embedding() *embedding {
	return &embedding{m: m, known: map[string]int32{}, count: make([]float32, len(m.terms))}
}

func (e *embedding) term(word string) int32 {
	if i, ok := e.known[word]; ok {
		return i
	}
	i := int32(-1)
	if at, ok := e.m.terms[stemOf(word)]; ok {
		i = at
	}
	if len(e.known) >= mostKnown {
		clear(e.known)
	}
	e.known[strings.Clone(word)] = i
	return i
}

func (e *embedding) bag(text string) (b bag) {
	runs(text, func(w string) {
		i := e.term(w)
		if i < 0 {
			return
		}
		if e.count[i] == 0 {
			b.term = append(b.term, i)
		}
		e.count[i]++
	})
	slices.Sort(b.term) // sums of floats depend on their order, and a model must not
	b.weight = make([]float32, len(b.term))
	var sum float64
	for j, i := range b.term {
		w := e.m.idf[i]
		if n := e.count[i]; n > 1 {
			w *= 1 + float32(math.Log(float64(n)))
		}
		e.count[i] = 0
		b.weight[j] = w
		sum += float64(w) * float64(w)
	}
	if sum > 0 {
		scale := float32(1 / math.Sqrt(sum))
		for j := range b.weight {
			b.weight[j] *= scale
		}
	}
	return b
}

// of returns the vector of a text, of length 1 or, without a known word, 0.
func (e *embedding) of(text string) []float32 {
	v := make([]float32, e.m.dims)
	b := e.bag(text)
	row := func(j int) []float32 { return e.m.rows[int(b.term[j])*e.m.dims:][:len(v)] }
	j := 0
	for ; j+4 <= len(b.term); j += 4 { // fewer loads and stores of v than one row at a time
		r0, r1, r2, r3 := row(j), row(j+1), row(j+2), row(j+3)
		w0, w1, w2, w3 := b.weight[j], b.weight[j+1], b.weight[j+2], b.weight[j+3]
		for d := range v {
			v[d] += w0*r0[d] + w1*r1[d] + w2*r2[d] + w3*r3[d]
		}
	}
	for ; j < len(b.term); j++ {
		w := b.weight[j]
		for d, x := range row(j) {
			v[d] += w * x
		}
	}
	return normalise(v)
}

// embed returns the vectors of texts, of length 1 or, without a known word, 0.
func (m *lsa) embed(texts []string) [][]float32 {
	all := make([][]float32, len(texts))
	some := func(from, to int) {
		e := m.embedding()
		for i := from; i < to; i++ {
			all[i] = e.of(texts[i])
		}
	}
	if len(texts) < 16 {
		some(0, len(texts))
		return all
	}
	halves(len(texts), func(_, from, to int) { some(from, to) })
	return all
}

func normalise(v []float32) []float32 {
	var sum float64
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	if sum > 0 {
		scale := float32(1 / math.Sqrt(sum))
		for i := range v {
			v[i] *= scale
		}
	}
	return v
}

// leftVectors returns the first k left singular vectors of the matrix whose columns are bags, as terms x k, by
// randomized subspace iteration (Halko, Martinsson and Tropp 2011).
func leftVectors(bags []bag, terms, k int) []float32 {
	l := min(k+lsaExtra, len(bags), terms)
	rng := rand.New(rand.NewPCG(1, 2)) // the same collection gives the same model
	y := make([]float32, terms*l)
	row := make([]float32, l)
	for _, b := range bags {
		for d := range row {
			row[d] = float32(rng.NormFloat64())
		}
		scatter(y, b, row, l)
	}
	rounds := lsaRounds
	if len(bags) > lsaMany {
		rounds--
	}
	for range rounds {
		orthonormalise(y, terms, l, false) // it only keeps the columns apart
		next := make([]float32, terms*l)
		halves(l, func(_, from, to int) {
			row := make([]float32, to-from)
			for _, b := range bags {
				gather(row, y[from:], b, l)
				scatter(next[from:], b, row, l)
			}
		})
		y = next
	}
	orthonormalise(y, terms, l, true)
	gram := projectedGram(bags, y, l)
	return rotate(y, eigenvectors(gram, l), terms, l, k)
}

// projectedGram returns the products of the rows of the bags times y.
func projectedGram(bags []bag, y []float32, l int) []float64 {
	var sums [2][]float64
	halves(len(bags), func(half, from, to int) {
		gram, row := make([]float64, l*l), make([]float32, l)
		for _, b := range bags[from:to] {
			gather(row, y, b, l)
			for i, x := range row {
				for j, z := range row[:i+1] {
					gram[i*l+j] += float64(x) * float64(z)
				}
			}
		}
		sums[half] = gram
	})
	gram := sums[0]
	for i := range l {
		for j := range i + 1 {
			gram[i*l+j] += sums[1][i*l+j]
			gram[j*l+i] = gram[i*l+j]
		}
	}
	return gram
}

// scatter adds the product of a bag and a row to y, whose rows are l apart.
func scatter(y []float32, b bag, row []float32, l int) {
	for j, t := range b.term {
		w := b.weight[j]
		to := y[int(t)*l:][:len(row)]
		for d, x := range row {
			to[d] += w * x
		}
	}
}

// gather sets row to the product of a bag and y, whose rows are l apart.
func gather(row, y []float32, b bag, l int) {
	clear(row)
	for j, t := range b.term {
		w := b.weight[j]
		for d, x := range y[int(t)*l:][:len(row)] {
			row[d] += w * x
		}
	}
}

// orthonormalise makes the columns of y, n x l, orthonormal, by the Cholesky factor of their products, twice for
// accuracy if exact is set.
func orthonormalise(y []float32, n, l int, exact bool) {
	rounds := 1
	if exact {
		rounds = 2
	}
	for range rounds {
		g := gramOf(y, n, l)
		cholesky(g, l)
		y32 := make([]float32, l*l)
		for i, x := range inverseTransposed(g, l) {
			y32[i] = float32(x)
		}
		multiplyRows(y, y, y32, n, l, l)
	}
}

// halves calls f with two halves of the rows 0 to n, cut at a multiple of 4, at the same time.
func halves(n int, f func(half, from, to int)) {
	middle := n / 2 &^ 3
	var wait sync.WaitGroup
	wait.Go(func() { f(0, 0, middle) })
	f(1, middle, n)
	wait.Wait()
}

// gramOf returns the lower triangle of the products of the columns of y, n x l. Four rows are added at a time, because
// the sums do not fit into registers.
func gramOf(y []float32, n, l int) []float64 {
	var sums [2][]float64
	halves(n, func(half, from, to int) {
		g := make([]float64, l*l)
		zero := make([]float32, l)
		for r := from; r < to; r += 4 {
			var rows [4][]float32
			for k := range rows {
				if rows[k] = zero; r+k < to {
					rows[k] = y[(r+k)*l : (r+k)*l+l]
				}
			}
			for i := range l {
				x0, x1, x2, x3 := rows[0][i], rows[1][i], rows[2][i], rows[3][i]
				if x0 == 0 && x1 == 0 && x2 == 0 && x3 == 0 {
					continue
				}
				to := g[i*l : i*l+i+1]
				a, b, c, d := rows[0][:len(to)], rows[1][:len(to)], rows[2][:len(to)], rows[3][:len(to)]
				for j := range to {
					to[j] += float64(x0*a[j] + x1*b[j] + x2*c[j] + x3*d[j])
				}
			}
		}
		sums[half] = g
	})
	for i, x := range sums[1] {
		sums[0][i] += x
	}
	return sums[0]
}

// inverseTransposed returns the transposed inverse of a lower triangle; a column that is 0 stays 0.
func inverseTransposed(g []float64, l int) []float64 {
	out := make([]float64, l*l) // row j, column i: element i, j of the inverse
	for j := range l {
		if g[j*l+j] == 0 {
			continue
		}
		out[j*l+j] = 1 / g[j*l+j]
		for i := j + 1; i < l; i++ {
			if g[i*l+i] == 0 {
				continue
			}
			sum := 0.0
			for k := j; k < i; k++ {
				sum -= g[i*l+k] * out[j*l+k]
			}
			out[j*l+i] = sum / g[i*l+i]
		}
	}
	return out
}

// multiplyRows sets each row of to, n x k, to the same row of y, n x l, times m, l x k. to may be y if k is l.
func multiplyRows(to, y, m []float32, n, l, k int) {
	halves(n, func(_, from, until int) {
		sum := make([]float32, 4*k)
		zero := make([]float32, l)
		for r := from; r < until; r += 4 {
			clear(sum)
			var rows [4][]float32
			for q := range rows {
				if rows[q] = zero; r+q < until {
					rows[q] = y[(r+q)*l : (r+q)*l+l]
				}
			}
			s0, s1, s2, s3 := sum[:k], sum[k:2*k], sum[2*k:3*k], sum[3*k:4*k]
			for i := range l {
				x0, x1, x2, x3 := rows[0][i], rows[1][i], rows[2][i], rows[3][i]
				if x0 == 0 && x1 == 0 && x2 == 0 && x3 == 0 {
					continue
				}
				row := m[i*k : i*k+k]
				a, b, c, d := s0[:len(row)], s1[:len(row)], s2[:len(row)], s3[:len(row)]
				for j, v := range row {
					a[j] += x0 * v
					b[j] += x1 * v
					c[j] += x2 * v
					d[j] += x3 * v
				}
			}
			for q := 0; q < 4 && r+q < until; q++ {
				copy(to[(r+q)*k:(r+q)*k+k], sum[q*k:q*k+k])
			}
		}
	})
}

// cholesky replaces the lower triangle of g by its factor. A column that depends on the others becomes 0.
func cholesky(g []float64, l int) {
	for j := range l {
		before := g[j*l+j]
		for k := range j {
			g[j*l+j] -= g[j*l+k] * g[j*l+k]
		}
		if g[j*l+j] <= before*1e-10 {
			for i := j; i < l; i++ {
				g[i*l+j] = 0
			}
			continue
		}
		d := math.Sqrt(g[j*l+j])
		g[j*l+j] = d
		for i := j + 1; i < l; i++ {
			for k := range j {
				g[i*l+j] -= g[i*l+k] * g[j*l+k]
			}
			g[i*l+j] /= d
		}
	}
}

// eigenvectors returns the eigenvectors of a symmetric matrix as columns, the largest eigenvalue first, by Jacobi
// rotations.
func eigenvectors(a []float64, n int) []float64 {
	v := make([]float64, n*n)
	for i := range n {
		v[i*n+i] = 1
	}
	for range 12 {
		off, diag := 0.0, 0.0
		for i := range n {
			diag += a[i*n+i] * a[i*n+i]
			for j := range i {
				off += a[i*n+j] * a[i*n+j]
			}
		}
		if off <= diag*1e-14 {
			break
		}
		for p := range n {
			for q := p + 1; q < n; q++ {
				jacobi(a, v, n, p, q)
			}
		}
	}
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(x, y int) int {
		switch {
		case a[x*n+x] > a[y*n+y]:
			return -1
		case a[x*n+x] < a[y*n+y]:
			return 1
		}
		return x - y
	})
	sorted := make([]float64, n*n)
	for to, from := range order {
		for i := range n {
			sorted[i*n+to] = v[i*n+from]
		}
	}
	return sorted
}

// jacobi makes element p, q of a zero by a rotation, and applies it to v.
func jacobi(a, v []float64, n, p, q int) {
	if a[p*n+q] == 0 {
		return
	}
	theta := (a[q*n+q] - a[p*n+p]) / (2 * a[p*n+q])
	t := 1 / (math.Abs(theta) + math.Sqrt(theta*theta+1))
	if theta < 0 {
		t = -t
	}
	c := 1 / math.Sqrt(t*t+1)
	s := t * c
	for i := range n {
		x, y := a[i*n+p], a[i*n+q]
		a[i*n+p], a[i*n+q] = c*x-s*y, s*x+c*y
	}
	for i := range n {
		x, y := a[p*n+i], a[q*n+i]
		a[p*n+i], a[q*n+i] = c*x-s*y, s*x+c*y
	}
	for i := range n {
		x, y := v[i*n+p], v[i*n+q]
		v[i*n+p], v[i*n+q] = c*x-s*y, s*x+c*y
	}
}

// rotate returns the first k columns of y times e.
func rotate(y []float32, e []float64, n, l, k int) []float32 {
	m := make([]float32, l*k)
	for i := range l {
		for j := range k {
			m[i*k+j] = float32(e[i*l+j])
		}
	}
	out := make([]float32, n*k)
	multiplyRows(out, y, m, n, l, k)
	return out
}

var errModel = errors.New("the stored model is damaged: ingest again with recreate")

// pack encodes a model: the number of dimensions and terms, and each term with its weight and its row as int8.
func (m *lsa) pack() []byte {
	var b bytes.Buffer
	names := make([]string, len(m.terms))
	for s, i := range m.terms {
		names[i] = s
	}
	put := func(n int) { b.Write(binary.AppendUvarint(nil, uint64(n))) }
	put(m.dims)
	put(len(names))
	for i, s := range names {
		put(len(s))
		b.WriteString(s)
		b.Write(binary.LittleEndian.AppendUint32(nil, math.Float32bits(m.idf[i])))
		b.Write(packVector(m.rows[i*m.dims : (i+1)*m.dims]))
	}
	return b.Bytes()
}

func unpackLSA(data []byte) (*lsa, error) {
	bad := false
	get := func() int {
		n, size := binary.Uvarint(data)
		if size <= 0 || n > 1<<20 {
			bad = true
			return 0
		}
		data = data[size:]
		return int(n)
	}
	m := &lsa{dims: get()}
	n := get()
	if bad || m.dims > 4096 || n > lsaTerms {
		return nil, errModel
	}
	m.terms = make(map[string]int32, n)
	m.idf = make([]float32, n)
	m.rows = make([]float32, n*m.dims)
	for i := range n {
		size := get()
		if bad || len(data) < size+4+4+m.dims {
			return nil, errModel
		}
		m.terms[string(data[:size])] = int32(i)
		m.idf[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[size:]))
		unpackVector(m.rows[i*m.dims:(i+1)*m.dims], data[size+4:size+8+m.dims])
		data = data[size+8+m.dims:]
	}
	return m, nil
}

// packVector encodes a vector as its largest magnitude and one int8 for each dimension.
func packVector(v []float32) []byte {
	var most float32
	for _, x := range v {
		most = max(most, x, -x)
	}
	b := binary.LittleEndian.AppendUint32(make([]byte, 0, 4+len(v)), math.Float32bits(most))
	for _, x := range v {
		q := float32(0)
		if most > 0 {
			q = x / most * 127
		}
		b = append(b, byte(int8(math.RoundToEven(float64(q)))))
	}
	return b
}

func unpackVector(v []float32, b []byte) {
	scale := math.Float32frombits(binary.LittleEndian.Uint32(b)) / 127
	for i := range v {
		v[i] = scale * float32(int8(b[4+i]))
	}
}
