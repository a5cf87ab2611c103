package page

import (
	"strings"
	"testing"
	"time"
)

// A secret reaches the password field of its origin whole, and neither a frame of another origin that takes the focus
// all the time nor the page around the frame of its origin gets a key of it.
func TestASecretIsNotTypedIntoOtherFrames(t *testing.T) {
	const password = "correct horse battery"
	thief := `<input aria-label=Other id=f><script>setInterval(() => f.focus(), 1)</script>`
	shop := `<form onsubmit="event.preventDefault(); out.textContent = 'sent ' + p.value.length + ' ' + events"><input type=password aria-label=Pass id=p></form>
<p id=out></p><script>let events = 0; p.oninput = (e) => { if (e.isTrusted) events++ }</script>`
	frame := func(url string) string {
		return `<iframe src="` + strings.Replace(url, "127.0.0.1", "localhost", 1) + `/"></iframe>`
	}
	other, own := serve(t, map[string]string{"/": thief}), serve(t, map[string]string{"/": shop})
	for name, pages := range map[string]string{"frame inside": shop + frame(other), "page around": thief + frame(own)} {
		t.Run(name, func(t *testing.T) {
			tab := goTo(t, open(t), serve(t, map[string]string{"/": pages})+"/")
			asked := 0
			for range 3 {
				_, err := tab.Type(t.Context(), at(t, `textbox "Pass"`), password, TypeOptions{
					Clear: true, Timeout: time.Minute,
					May: func(string, bool) error { asked++; return nil },
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			e, err := tab.Resolve(t.Context(), at(t, `textbox "Other"`))
			if err != nil {
				t.Fatal(err)
			}
			var got string
			if err := tab.callFunction(t.Context(), e.frame, "valueOf", &got, e.n); err != nil || got != "" || asked != 3 {
				t.Errorf("the other frame has %q, %v; asked %d times", got, err, asked)
			}
			if e, err = tab.Resolve(t.Context(), at(t, `textbox "Pass"`)); err != nil {
				t.Fatal(err)
			}
			if err := tab.callFunction(t.Context(), e.frame, "valueOf", &got, e.n); err != nil || got != password {
				t.Errorf("the field has %q, %v", got, err)
			}
		})
	}
}
