package approvals

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"gatehouse/internal/access/displaytext"
)

const (
	wholeArgs  = 4 << 10  // bytes of arguments that are shown as they are
	wholeValue = 512      // of one value where they are more
	wholeLine  = 16 << 10 // of a command line, which is shown whole or not at all
	endsShown  = 160      // of the beginning, and of the end, of what is cut
)

// lines are the arguments that say what is run: a person who sees only part of
// one cannot agree to it.
var lines = []string{"command", "args", "argv", "cmd", "script", "code", "stdin", "env"}

// TooLong is why a call cannot be approved: what it would run cannot be shown.
type TooLong struct {
	Argument string
	Bytes    int
}

func (e *TooLong) Error() string {
	return fmt.Sprintf(
		"its %s has %d bytes, and what is run is shown whole or not asked about: at most %d bytes can be approved",
		e.Argument,
		e.Bytes,
		wholeLine,
	)
}

// cut stands for a value that is too long to be shown.
type cut struct {
	Beginning string `json:"beginning"`
	End       string `json:"end"`
	Bytes     int    `json:"bytes"`
	SHA256    string `json:"sha256"`
}

// Shown is what a person is shown of a call's arguments: all of them where they
// are short, otherwise the beginning, end, length and digest of each long value.
// What would deceive the reader is escaped. The error is a *TooLong.
func Shown(args json.RawMessage) (json.RawMessage, error) {
	if len(args) == 0 {
		return json.RawMessage("{}"), nil
	}
	if len(args) <= wholeArgs {
		return displaytext.JSON(args), nil
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(args, &members) != nil {
		return shorten(args), nil
	}
	total := 0
	for name, v := range members {
		switch {
		case slices.Contains(lines, name):
			if len(v) > wholeLine {
				return nil, &TooLong{name, len(v)}
			}
		case len(v) > wholeValue:
			members[name] = shorten(v)
		}
		if total += len(name) + len(members[name]); total > 2*wholeLine {
			for _, line := range lines {
				if v, ok := members[line]; ok {
					return nil, &TooLong{line, len(v)}
				}
			}
			return shorten(args), nil // so many arguments that a list of them says nothing
		}
	}
	b, err := json.Marshal(members)
	if err != nil {
		return shorten(args), nil
	}
	return displaytext.JSON(json.RawMessage(b)), nil
}

// shorten shows the ends of a value.
func shorten(v json.RawMessage) json.RawMessage {
	text := string(v)
	json.Unmarshal(v, &text) // a string loses its quotes, anything else stays as it is
	sum := sha256.Sum256([]byte(text))
	c := cut{Bytes: len(text), SHA256: hex.EncodeToString(sum[:])}
	c.Beginning = strings.ToValidUTF8(displaytext.Cut(text, endsShown, ""), "")
	c.End = strings.ToValidUTF8(text[max(0, len(text)-endsShown):], "")
	b, err := json.Marshal(c)
	if err != nil {
		return json.RawMessage(`"…"`) // strings and a number: it cannot fail
	}
	return displaytext.JSON(json.RawMessage(b))
}
