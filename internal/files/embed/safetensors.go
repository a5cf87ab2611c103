package embed

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
)

// Limits of a file of tensors.
const (
	maxHeader = 16 << 20
	maxTensor = 1 << 30 // values of one
)

// tensors is a file in the form of safetensors. The first error is kept.
type tensors struct {
	f      *os.File
	start  int64 // of the data
	size   int64 // of the file
	header map[string]tensor
	print  []byte // tells one file from another: the header, and the beginning and end of the data
	err    error
}

type tensor struct {
	Type    string   `json:"dtype"`
	Shape   []int    `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

func openTensors(path string) (t *tensors, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	t = &tensors{f: f, size: info.Size()}
	var length [8]byte
	if _, err := io.ReadFull(f, length[:]); err != nil {
		return nil, fmt.Errorf("model.safetensors: %w", err)
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > maxHeader || int64(n) > t.size-8 {
		return nil, fmt.Errorf("model.safetensors: its header has %d bytes", n)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(f, text); err != nil {
		return nil, err
	}
	all := map[string]json.RawMessage{}
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("model.safetensors: its header: %w", err)
	}
	t.start, t.header = 8+int64(n), map[string]tensor{}
	for name, raw := range all {
		var one tensor
		if name == "__metadata__" {
			continue
		}
		if err := json.Unmarshal(raw, &one); err != nil {
			return nil, fmt.Errorf("model.safetensors: %s: %w", name, err)
		}
		t.header[name] = one
	}
	t.print = text
	for _, at := range []int64{t.start, max(t.start, t.size-1<<20)} {
		part, err := io.ReadAll(io.NewSectionReader(f, at, min(1<<20, t.size-at)))
		if err != nil {
			return nil, err
		}
		t.print = append(t.print, part...)
	}
	return t, nil
}

func (t *tensors) has(name string) bool {
	_, ok := t.header[name]
	return ok
}

// read returns the values of a tensor, which has size of them; 0 means any number.
func (t *tensors) read(name string, size int) []float32 {
	if t.err != nil {
		return nil
	}
	one, ok := t.header[name]
	width := map[string]int64{"F32": 4, "F16": 2, "BF16": 2, "I8": 1, "I64": 8}[one.Type]
	bytes := one.Offsets[1] - one.Offsets[0]
	switch {
	case !ok:
		t.err = fmt.Errorf("model.safetensors: there is no %s", name)
	case width == 0:
		t.err = fmt.Errorf("model.safetensors: %s has the type %s; expected F32, F16, BF16, I8 or I64", name, one.Type)
	case one.Offsets[0] < 0 || bytes < 0 || one.Offsets[1] > t.size-t.start || bytes%width != 0 ||
		bytes/width > maxTensor,
		size > 0 && bytes/width != int64(size):
		t.err = fmt.Errorf("model.safetensors: %s has %d bytes; expected %d values", name, bytes, size)
	}
	if t.err != nil {
		return nil
	}
	out := make([]float32, bytes/width)
	r := bufio.NewReaderSize(io.NewSectionReader(t.f, t.start+one.Offsets[0], bytes), 1<<20)
	var b [8]byte
	for i := range out {
		if _, t.err = io.ReadFull(r, b[:width]); t.err != nil {
			return nil
		}
		switch one.Type {
		case "F32":
			out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[:]))
		case "I8":
			out[i] = float32(int8(b[0]))
		case "I64": // numbers of rows, which a float32 has exactly
			out[i] = float32(int64(binary.LittleEndian.Uint64(b[:])))
		case "BF16":
			out[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(b[:])) << 16)
		default:
			out[i] = half(binary.LittleEndian.Uint16(b[:]))
		}
	}
	return out
}

// half converts a float of 16 bits.
func half(b uint16) float32 {
	sign, exponent, fraction := uint32(b>>15)<<31, uint32(b>>10)&31, uint32(b)&1023
	switch exponent {
	case 0:
		f := float32(fraction) / (1 << 24)
		return math.Float32frombits(math.Float32bits(f) | sign)
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | fraction<<13)
	}
	return math.Float32frombits(sign | (exponent+112)<<23 | fraction<<13)
}

// close closes the file and returns the first error.
func (t *tensors) close() error {
	t.f.Close()
	return t.err
}
