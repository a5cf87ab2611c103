// Package embed makes vectors of texts with a model: one behind an HTTP server, or one in a folder of weights.
//
// An Embedder has two methods. Space names the model, so that vectors of different models are never compared.
package embed

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"

	"gatehouse/internal/access/secret"
)

// Embedder turns texts into vectors of one length. It is safe for concurrent use.
type Embedder interface {
	// Space names the model and its version: vectors of different spaces cannot be compared.
	Space() (name string, dims int)
	// Embed returns one vector of length 1 for each text. query says that the texts are questions and not documents.
	Embed(ctx context.Context, texts []string, query bool) ([][]float32, error)
}

// Kinds of embedders.
const (
	OpenAI = "openai" // a server with the embeddings of OpenAI: llama-server, Ollama, LM Studio, any
	Folder = "folder" // a folder with a BERT model, or a table of tokens' vectors; see OpenFolder
)

// Settings choose the embedder of a host. The zero value means none.
type Settings struct {
	Kind       string `doc:"What makes the vectors: openai (a server with OpenAI's embeddings, such as llama-server, Ollama or LM Studio), or folder (a BERT model such as MiniLM, or a table of vectors such as model2vec makes, on this machine). Left out, latent semantic analysis of each collection, which needs neither." enum:"openai,folder"`
	URL        string `yaml:"url" doc:"Base URL of the server, such as http://127.0.0.1:11434/v1."`
	Key        string `doc:"Key of the server, best as a reference: ${secret:NAME}."`
	Model      string `doc:"Model of the server."`
	Dimensions int    `doc:"Length of the server's vectors, such as 768."`
	Query      string `doc:"What the model expects in front of a question, such as query: with a space."`
	Document   string `doc:"What the model expects in front of a document."`
	Path       string `doc:"Folder with config.json, vocab.txt and model.safetensors, or with tokenizer.json and model.safetensors for a table of vectors." kind:"path"`
}

// maxDims is the largest length of a vector.
const maxDims = 4096

// Validate returns what is wrong with the settings.
func (s Settings) Validate() error {
	switch s.Kind {
	case "":
		return nil
	case Folder:
		if s.Path == "" {
			return errors.New("path: expected the folder of a model")
		}
		return nil
	case OpenAI:
	default:
		return fmt.Errorf("kind %q: expected openai or folder", s.Kind)
	}
	if err := validateServer(s.URL, s.Key); err != nil {
		return err
	}
	switch {
	case s.Model == "":
		return errors.New("model: expected the name of the server's model")
	case s.Dimensions < 2 || s.Dimensions > maxDims:
		return fmt.Errorf("dimensions %d: expected 2 to %d", s.Dimensions, maxDims)
	}
	return nil
}

func validateServer(address, key string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "":
		return fmt.Errorf("url %q: expected http://host or https://host with a path", address)
	case key != "" && u.Scheme == "http" && !isLoopback(u.Hostname()):
		return errors.New(
			"key: it would be sent to another machine without encryption; expected a url that begins with https://",
		)
	}
	_, err = secret.Names(key)
	return err
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// New returns the embedder of settings that are valid, nil if they choose none. fill replaces references to secrets;
// nil means that there are no secrets.
func New(s Settings, fill func(map[string]string) (map[string]secret.Text, error)) (Embedder, error) {
	switch s.Kind {
	case OpenAI:
		return newServer(s, fill), nil
	case Folder:
		return OpenFolder(s.Path)
	}
	return nil, nil
}

// unit scales a vector to length 1. It fails if the vector is 0 or has values that are no numbers.
func unit(v []float32) error {
	var sum float64
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	if sum == 0 || math.IsNaN(sum) || math.IsInf(sum, 0) {
		return errors.New("the model returned a vector without a direction")
	}
	scale := float32(1 / math.Sqrt(sum))
	for i := range v {
		v[i] *= scale
	}
	return nil
}
