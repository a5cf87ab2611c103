package toolsearch

import (
	"bytes"
	_ "embed" // vectors.bin
	"encoding/binary"
	"math"
	"sort"
	"strings"
	"sync"
)

// vectorFile has a vector for each of some 15,000 English stems: words that are used alike have similar ones.
// vectors/README.md says of what it was made. After a magic number, the number of stems, the dimensions and the bytes
// of the stems come the sorted stems, one a line; a bfloat16 for each, by which its row is multiplied; and the rows,
// four bits for each dimension.
//
//go:embed vectors.bin
var vectorFile []byte

// table is the content of vectorFile.
type table struct {
	dims   int
	stems  []byte
	lines  []int32 // where each stem begins
	scales []byte
	rows   []byte
}

var openTable = sync.OnceValue(func() *table {
	const header = 16
	n := int(binary.LittleEndian.Uint32(vectorFile[4:]))
	t := &table{dims: int(binary.LittleEndian.Uint32(vectorFile[8:]))}
	size := int(binary.LittleEndian.Uint32(vectorFile[12:]))
	t.stems = vectorFile[header : header+size]
	t.scales = vectorFile[header+size : header+size+2*n]
	t.rows = vectorFile[header+size+2*n:]
	t.lines = make([]int32, 1, n+1)
	for i, c := range t.stems {
		if c == '\n' {
			t.lines = append(t.lines, int32(i+1))
		}
	}
	return t
})

// addWeighted adds the vector of a stem, times a weight, to v. It does nothing for an unknown one.
func (t *table) addWeighted(v []float32, stem string, weight float32) {
	line := func(i int) []byte { return t.stems[t.lines[i] : t.lines[i+1]-1] }
	n := len(t.lines) - 1
	i := sort.Search(n, func(i int) bool { return bytes.Compare(line(i), []byte(stem)) >= 0 })
	if i == n || string(line(i)) != stem {
		return
	}
	weight *= math.Float32frombits(uint32(binary.LittleEndian.Uint16(t.scales[2*i:])) << 16)
	row := t.rows[i*t.dims/2 : (i+1)*t.dims/2]
	for j, b := range row {
		v[2*j] += weight * float32(int(b&15)-8)
		v[2*j+1] += weight * float32(int(b>>4)-8)
	}
}

// vector returns the sum of the vectors of all stems, of length 1, or nil if none is known.
func (t *table) vector(stems []string) []float32 {
	v := make([]float32, t.dims)
	for _, s := range stems {
		t.addWeighted(v, s, 1)
	}
	sum := 0.0
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	if sum == 0 {
		return nil
	}
	scale := float32(1 / math.Sqrt(sum))
	for i := range v {
		v[i] *= scale
	}
	return v
}

const (
	meaningText = 160  // bytes of a description that its vector is made of
	leastAlike  = 0.25 // cosine below which the vectors say nothing
	// meaningWeight is the share of the vectors in a score, if the words find something at all.
	meaningWeight = 0.25
)

// vectorOf returns the vector of a document. Its name counts twice.
func vectorOf(d *Document) []float32 {
	name := strings.TrimPrefix(d.Name, d.Package)
	text := d.Description[:min(len(d.Description), meaningText)]
	return openTable().vector(terms(d.Package + " " + name + " " + name + " " + d.Title + " " + text))
}

// addMeaning adds to scores how much documents are alike to the words of a query. Both parts are divided by their
// largest value, so that a score is at most 1.
func (x *Index) addMeaning(scores []float64, words []string) {
	most := 0.0
	for _, s := range scores {
		most = max(most, s)
	}
	if most > 0 {
		for i := range scores {
			scores[i] *= (1 - meaningWeight) / most
		}
	}
	q := openTable().vector(words)
	if q == nil || x.dims == 0 {
		return
	}
	cosines := make([]float32, x.documents)
	best := float32(leastAlike)
	for i := range cosines {
		cosines[i] = dot(q, x.vectors[i*x.dims:(i+1)*x.dims])
		best = max(best, cosines[i])
	}
	for i, c := range cosines {
		if c >= leastAlike {
			scores[i] += meaningWeight * float64(c/best)
		}
	}
}

// dot returns the product of two vectors, whose length is a multiple of 4.
func dot(a, b []float32) float32 {
	var s0, s1, s2, s3 float32
	for len(a) >= 4 && len(b) >= 4 {
		s0 += a[0] * b[0]
		s1 += a[1] * b[1]
		s2 += a[2] * b[2]
		s3 += a[3] * b[3]
		a, b = a[4:], b[4:]
	}
	return s0 + s1 + s2 + s3
}
