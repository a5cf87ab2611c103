package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
)

func TestWhatIsLoggedForACallCarriesItsID(t *testing.T) {
	ctx := context.WithoutCancel(&marked{t.Context(), "c1", "abc"}) // also through others
	for format, want := range map[string]string{
		"text": "level=INFO msg=hello module=file request=c1 trace=abc\n",
		"json": `"level":"INFO","msg":"hello","module":"file","request":"c1","trace":"abc"}` + "\n",
	} {
		var said bytes.Buffer
		log := Logger(&said, format, slog.LevelInfo).With("module", "file")
		log.InfoContext(ctx, "hello")
		log.DebugContext(ctx, "not worth saying")
		if got := said.String(); !strings.HasSuffix(got, want) || strings.Count(got, "\n") != 1 {
			t.Errorf("%s: got %s, want %s", format, got, want)
		}
		said.Reset()
		log.WithGroup("g").Info("no call", "a", 1)
		if got := said.String(); strings.Contains(got, "request") || format == "json" && !json.Valid([]byte(got)) {
			t.Errorf("%s: got %s", format, got)
		}
	}
}
