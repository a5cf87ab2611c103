package audit

import (
	"errors"

	"github.com/klauspost/compress/s2"
)

// mostUnpacked limits the size of the lines of one block; a block accepts no further line after
// longestBlock.
const mostUnpacked = 16 << 20

var errPacked = errors.New("a block of the audit ledger is damaged: it cannot be unpacked")

// pack compresses the text of a block to about a tenth. It uses the capacity of scratch.
func pack(scratch, text []byte) []byte { return s2.Encode(scratch[:cap(scratch)], text) }

// unpack returns the text of a block. Empty input gives empty output.
func unpack(packed []byte) ([]byte, error) {
	if len(packed) == 0 {
		return nil, nil
	}
	if n, err := s2.DecodedLen(packed); err != nil || n > mostUnpacked {
		return nil, errPacked
	}
	text, err := s2.Decode(nil, packed)
	if err != nil {
		return nil, errPacked
	}
	return text, nil
}
