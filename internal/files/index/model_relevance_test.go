package index_test

import (
	"os"
	"testing"

	"gatehouse/internal/files/embed"
	"gatehouse/internal/files/index"
)

// TestRelevanceWithAModel measures nDCG@10 with the vectors of a model: GATEHOUSE_EMBEDDINGS is the address of a server
// with OpenAI's embeddings that has all-MiniLM-L6-v2.
func TestRelevanceWithAModel(t *testing.T) {
	url := os.Getenv("GATEHOUSE_EMBEDDINGS")
	if url == "" {
		t.Skip("GATEHOUSE_EMBEDDINGS is not set; it takes minutes to hours")
	}
	model, err := embed.New(embed.Settings{
		Kind: embed.OpenAI, URL: url, Model: "all-MiniLM-L6-v2", Dimensions: 384,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	// .6451 is what is published of the model's vectors alone; of Cranfield nothing is.
	index.MeasureRelevance(t, model, map[string]float64{"scifact": .6451 + .03, "cranfield": 0})
}
