package hub

import (
	"errors"
	"testing"

	"gatehouse/tool"
)

// Every message is either decoded or refused, and a decoded one names a valid channel.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		`{"type":"ping"}`, `{"type":"subscribe","data":"process:p1"}`, `{"type":"unsubscribe","channel":"chat:1"}`,
		`{"type":"subscribe","data":{"a":1},"channel":"ide:x"}`, `{"TYPE":"ping"}`, `{"type":null}`, `[`, ``,
		`{"type":"subscribe","data":"event:*"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRequest(b)
		if err != nil {
			if refusal, ok := errors.AsType[*tool.Refusal](err); !ok || refusal.Message == "" ||
				len(refusal.Message) > 300 {
				t.Errorf("%q: got %v", b, err)
			}
			return
		}
		switch r.kind {
		case ping:
		case subscribe, unsubscribe:
			if kind, err := KindOf(r.channel); err != nil || len(r.channel) > mostName || kind == "" {
				t.Errorf("%q: a channel %q", b, r.channel)
			}
		default:
			t.Errorf("%q: got %q", b, r.kind)
		}
	})
}
