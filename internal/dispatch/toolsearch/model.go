package toolsearch

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/files/atomicfile"
)

// Embedder makes vectors of length 1 of texts, with a model that knows language.
type Embedder interface {
	// Space names the model and its version, and says how long its vectors are.
	Space() (name string, dims int)
	Embed(ctx context.Context, texts []string, query bool) ([][]float32, error)
}

// ModelOptions configure a Model. Open and Log are required.
type ModelOptions struct {
	Open func() (Embedder, error) // is called when the first index is added
	Path string                   // of the file in which vectors are kept; "" means that they are made anew
	Log  *slog.Logger
}

// Model compares queries with tools by an Embedder. It makes the vectors of tools in the background and keeps them for
// all indexes, by their texts; until those of an index are complete, it is searched without them. It is safe for
// concurrent use.
type Model struct {
	o    ModelOptions
	life context.Context // ends with Close; vectors are made after the request that added an index
	end  context.CancelFunc
	work sync.WaitGroup

	mu       sync.Mutex // guards the fields below
	closed   bool
	running  bool
	queue    []added
	embedder Embedder // nil until it is open
	pause    time.Time

	vectors map[textKey][]float32 // used only by the goroutine that makes vectors
}

// textKey is a digest of a text.
type textKey [16]byte

// added is an index whose vectors are to be made.
type added struct {
	to    *Index
	texts []string
}

const (
	modelText   = 400 // bytes of a text that the model reads
	modelBatch  = 16  // texts that are embedded before the next look at whether the host is closing
	modelRetry  = time.Minute
	modelPause  = 30 * time.Second // after a query that failed, in which the model is not asked
	modelQuery  = 2 * time.Second  // how long a query waits for the model
	mostVectors = 64 << 20         // bytes of the file
	modelMagic  = "gatehouse tool vectors 1\n"
)

// NewModel returns a Model, which is closed with Close.
func NewModel(o ModelOptions) *Model {
	m := &Model{o: o}
	m.life, m.end = context.WithCancel(context.Background())
	return m
}

// Close stops making vectors.
func (m *Model) Close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.end()
	m.work.Wait()
}

// Add makes the vectors of an index of these documents in the background. It does nothing if m is nil.
func (m *Model) Add(x *Index, documents []Document) {
	if m == nil || len(documents) == 0 {
		return
	}
	a := added{to: x}
	for i := range documents {
		a.texts = append(a.texts, modelTextOf(&documents[i]))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	if m.queue = append(m.queue, a); !m.running {
		m.running = true
		m.work.Go(m.embedAll)
	}
}

// modelTextOf returns what the model reads of a document: its title or name, and the begin of its description.
func modelTextOf(d *Document) string {
	name := strings.NewReplacer("_", " ", "-", " ", ".", " ").Replace(strings.TrimPrefix(d.Name, d.Package+"_"))
	text := strings.TrimSpace(d.Package + " " + name)
	if d.Title != "" && !strings.EqualFold(d.Title, name) {
		text += ", " + d.Title
	}
	return cutText(text+": "+d.Description, modelText)
}

func cutText(text string, most int) string {
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}

// embedAll makes the vectors of what is in the queue, until nothing is.
func (m *Model) embedAll() {
	changed := false
	for {
		m.mu.Lock()
		if len(m.queue) == 0 || m.closed {
			m.running = false
			m.mu.Unlock()
			return
		}
		next, last := m.queue[0], len(m.queue) == 1
		m.queue = m.queue[1:]
		m.mu.Unlock()
		made, err := m.embedIndex(next)
		for tries := 0; err != nil && m.life.Err() == nil; tries++ {
			if tries == 0 {
				m.o.Log.Warn("tool search works without its model, which is tried again every minute", "error", err)
			}
			select {
			case <-time.After(modelRetry):
			case <-m.life.Done():
			}
			made, err = m.embedIndex(next)
		}
		if changed = changed || made; changed && last && m.life.Err() == nil {
			changed = false
			if err := m.save(next); err != nil {
				m.o.Log.Warn("the vectors of tools were not stored, and are made anew at the next start", "error", err)
			}
		}
	}
}

// embedIndex gives an index its vectors. made says that some were not known.
func (m *Model) embedIndex(a added) (made bool, err error) {
	e, err := m.opened()
	if err != nil {
		return false, err
	}
	_, dims := e.Space()
	var missing []string
	for _, text := range a.texts {
		if m.vectors[keyOf(text)] == nil {
			missing = append(missing, text)
		}
	}
	for len(missing) > 0 {
		part := missing[:min(len(missing), modelBatch)]
		all, err := e.Embed(m.life, part, false)
		if err != nil {
			return made, err
		}
		for i, v := range all {
			if len(v) != dims {
				return made, fmt.Errorf("the model returned %d dimensions; expected %d", len(v), dims)
			}
			m.vectors[keyOf(part[i])] = v
		}
		made, missing = true, missing[len(part):]
	}
	rows := make([]float32, 0, len(a.texts)*dims)
	for _, text := range a.texts {
		rows = append(rows, m.vectors[keyOf(text)]...)
	}
	a.to.model.Store(&modelVectors{dims, rows})
	return made, nil
}

func keyOf(text string) textKey {
	sum := sha256.Sum256([]byte(text))
	return textKey(sum[:])
}

// opened returns the embedder, and reads the file of its vectors when it is opened.
func (m *Model) opened() (Embedder, error) {
	m.mu.Lock()
	e := m.embedder
	m.mu.Unlock()
	if e != nil {
		return e, nil
	}
	e, err := m.o.Open()
	if err != nil {
		return nil, err
	}
	m.vectors = map[textKey][]float32{}
	if m.o.Path != "" {
		if err := m.read(e); err != nil && !errors.Is(err, fs.ErrNotExist) {
			m.o.Log.Warn("the stored vectors of tools are made anew", "error", err)
		}
	}
	m.mu.Lock()
	m.embedder = e
	m.mu.Unlock()
	return e, nil
}

// fileHeader begins the file of the vectors of a model. After it comes a digest and a vector for each text.
func fileHeader(e Embedder) string {
	name, dims := e.Space()
	return fmt.Sprintf("%s%q %d\n", modelMagic, name, dims)
}

func (m *Model) read(e Embedder) error {
	b, err := atomicfile.Read(m.o.Path, mostVectors)
	if err != nil {
		return err
	}
	header := []byte(fileHeader(e))
	if !bytes.HasPrefix(b, header) {
		return nil // of another model
	}
	b = b[len(header):]
	_, dims := e.Space()
	size := len(textKey{}) + 4*dims
	if len(b)%size != 0 {
		return fmt.Errorf("%s has no whole number of vectors", m.o.Path)
	}
	for ; len(b) > 0; b = b[size:] {
		v := make([]float32, dims)
		if _, err := binary.Decode(b[len(textKey{}):size], binary.LittleEndian, v); err != nil {
			return err
		}
		m.vectors[textKey(b[:len(textKey{})])] = v
	}
	return nil
}

// save writes the vectors to the file, or only those of one index if it would become too long.
func (m *Model) save(last added) error {
	if m.o.Path == "" {
		return nil
	}
	e, err := m.opened()
	if err != nil {
		return err
	}
	_, dims := e.Space()
	size := len(textKey{}) + 4*dims
	if most := mostVectors/size - 1; len(m.vectors) > most {
		kept := map[textKey][]float32{}
		for _, text := range last.texts[:min(len(last.texts), most)] {
			kept[keyOf(text)] = m.vectors[keyOf(text)]
		}
		m.vectors = kept
	}
	b := []byte(fileHeader(e))
	for key, v := range m.vectors {
		if b, err = binary.Append(append(b, key[:]...), binary.LittleEndian, v); err != nil {
			return err
		}
	}
	return atomicfile.Write(m.o.Path, b)
}

// vectorOf returns the vector of a query, or nil if there is none in time.
func (m *Model) vectorOf(ctx context.Context, query string) []float32 {
	m.mu.Lock()
	e, pause := m.embedder, m.pause
	m.mu.Unlock()
	if e == nil || time.Now().Before(pause) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, modelQuery)
	defer cancel()
	_, dims := e.Space()
	all, err := e.Embed(ctx, []string{cutText(query, modelText)}, true)
	if err == nil && (len(all) != 1 || len(all[0]) != dims) {
		err = errors.New("the model returned no vector of its length")
	}
	if err != nil {
		m.mu.Lock()
		m.pause = time.Now().Add(modelPause)
		m.mu.Unlock()
		m.o.Log.Warn("tools were searched without the model", "error", err)
		return nil
	}
	return all[0]
}

// modelVectors are the vectors of the documents of an index, one after the other.
type modelVectors struct {
	dims int
	rows []float32
}

// modelWeight is the share of the model in a score.
const modelWeight = 0.5

// SearchWith is Search, with a model that has the vectors of the index. A nil model, or one that cannot be asked, changes
// nothing.
func (x *Index) SearchWith(
	ctx context.Context, m *Model, query string, limit int, boost func(document int) float64,
) []Hit {
	var q []float32
	vectors := x.model.Load()
	if m != nil && vectors != nil {
		q = m.vectorOf(ctx, query)
	}
	scores := x.score(query)
	if q != nil {
		vectors.mix(scores, q, modelWeight)
	}
	return best(scores, limit, boost)
}

// mix adds how alike the documents are to a query, less what all of them are.
func (v *modelVectors) mix(scores []float64, q []float32, weight float64) {
	most, mean, top := 0.0, 0.0, math.Inf(-1)
	alike := make([]float64, len(scores))
	for i := range scores {
		most = max(most, scores[i])
		var sum float32
		for j, y := range v.rows[i*v.dims : (i+1)*v.dims] {
			sum += q[j] * y
		}
		alike[i] = float64(sum)
		mean += alike[i] / float64(len(scores))
		top = max(top, alike[i])
	}
	for i := range scores {
		if most > 0 {
			scores[i] *= (1 - weight) / most
		}
		if top > mean && alike[i] > mean {
			scores[i] += weight * (alike[i] - mean) / (top - mean)
		}
	}
}
